"""A verifiers environment as a task.

    VERIFIERS_PYTHON=/path/to/venv/bin/python agentrl-env serve examples/adapters/verifiers_task.py

That interpreter has verifiers and the taskset; this one needs neither.
"""

import os

from agentrl_env_sdk.adapters.verifiers import VerifiersTask


class Sums(VerifiersTask):
    """The taskset named in `VERIFIERS_TASKSET`."""

    def __init__(self) -> None:
        super().__init__(
            os.environ.get("VERIFIERS_PYTHON", "python"), os.environ.get("VERIFIERS_TASKSET", "sums-vf")
        )
