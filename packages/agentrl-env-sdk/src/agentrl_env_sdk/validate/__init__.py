"""Does a task keep what agents, trainers and workers rely on? A check a property, each by itself.

Task, oracle, Settings --> Subject --checks--> Finding ... --> Report --> table, JSON, JUnit
                           (samples, shared episodes on the real runner)
"""

from agentrl_env_sdk.validate.checks import CHECKS
from agentrl_env_sdk.validate.report import Finding, Report, Verdict
from agentrl_env_sdk.validate.run import check, validate
from agentrl_env_sdk.validate.subject import Settings, Subject

__all__ = ["CHECKS", "Finding", "Report", "Settings", "Subject", "Verdict", "check", "validate"]
