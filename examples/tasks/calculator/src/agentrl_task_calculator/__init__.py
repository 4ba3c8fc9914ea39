"""Work out expressions one operation at a time.

expression (from the index) -> compute(a, op, b) ... -> answer(number)
"""

from agentrl_task_calculator.expressions import Expression, generate
from agentrl_task_calculator.task import Calculator

__all__ = ["Calculator", "Expression", "generate"]
