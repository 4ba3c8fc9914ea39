"""Answer questions by walking over a graph of facts.

facts (an RDF graph from a seed) -> questions (a walk, in words) -> KGraph task (variables #0, #1, ...)
"""

from agentrl_task_kgraph.facts import make_graph
from agentrl_task_kgraph.questions import Question, ask
from agentrl_task_kgraph.task import KGraph

__all__ = ["KGraph", "Question", "ask", "make_graph"]
