"""The main job on one machine: two tasks learned from start to end, with a report.

LocalEnvironments (controller, task workers)
agentrl-eval before -> Trainer on a local Ray -> agentrl-eval after -> summary.json, report.html
"""

from agentrl_workers.quickstart.options import Options
from agentrl_workers.quickstart.run import quickstart

__all__ = ["Options", "quickstart"]
