"""Answer questions over a database, and change it.

worlds (schemas and rows from a seed) -> questions (text, SQL, kind) -> Sql task
                                                                        |
                                          databases: SQLite in memory, or MariaDB
"""

from agentrl_task_sql.questions import Question, ask
from agentrl_task_sql.task import Sql
from agentrl_task_sql.worlds import World, make_world

__all__ = ["Question", "Sql", "World", "ask", "make_world"]
