"""The pytest plugin: a fixture that plays episodes, one that validates, and checks as tests by an option.

pytest --agentrl-env-validate my_task.py      # each check of the conformance suite is a test
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from agentrl_env_sdk.testing.sync import SyncEpisode
    from agentrl_env_sdk.validate import Report, Subject

_OPTION = "--agentrl-env-validate"


@pytest.fixture
def play() -> "Iterator[Callable[..., SyncEpisode]]":
    """`play(Task, index=0, seed=1)` begins an episode, which is broken off after the test.

    Takes what `agentrl_env_sdk.testing.play` takes.
    """
    from agentrl_env_sdk.testing.sync import play_sync

    with ExitStack() as episodes:

        def begin(task: Any, index: Any = None, **options: Any) -> "SyncEpisode":
            return episodes.enter_context(play_sync(task, index, **options))

        yield begin


@pytest.fixture
def validate_task() -> "Callable[..., Report]":
    """`validate_task(Task)` runs the conformance suite and returns its report.

    Takes what `agentrl_env_sdk.validate.validate` takes, the task as an object, a class or a target.
    """
    from agentrl_env_sdk.testing.episode import as_task
    from agentrl_env_sdk.validate import validate

    def run(task: Any, **options: Any) -> "Report":
        return asyncio.run(validate(as_task(task), **options))

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    group = parser.getgroup("agentrl-env")
    group.addoption(
        _OPTION,
        action="append",
        default=[],
        metavar="TARGET",
        help="check a task (file.py, package.module:Task): each check is a test; may be repeated",
    )


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Adds a test for each check of each target."""
    targets: list[str] = config.getoption(_OPTION) or []
    for target in targets:
        task: TaskUnderTest = TaskUnderTest.from_parent(session, name=target, nodeid=f"validate[{target}]")
        items.extend(task.collect())


class TaskUnderTest(pytest.Collector):
    """A target of the option, with a test for each check."""

    def collect(self) -> list[pytest.Item]:
        """The checks."""
        from agentrl_env_sdk.validate import CHECKS

        self.subject: Subject | None = None
        # One loop for all, as on a worker: what a task opens belongs to the loop it was opened on.
        self.runner = asyncio.Runner()
        self.config.add_cleanup(self.runner.close)
        return [CheckItem.from_parent(self, name=name) for name in CHECKS]

    async def prepared(self) -> "Subject":
        """The task, loaded once."""
        from agentrl_env_sdk.target import load_task
        from agentrl_env_sdk.validate import Subject

        if self.subject is None:
            self.subject = Subject(load_task(self.name), source=[self.name])
        return self.subject


class CheckFailedError(Exception):
    """A check that found something; the text is its report."""


class CheckItem(pytest.Item):
    """One check of a task."""

    def runtest(self) -> None:
        """Run the check."""
        from agentrl_env_sdk.validate import Verdict, check

        task = self.parent
        assert isinstance(task, TaskUnderTest)
        subject = task.runner.run(task.prepared())
        finding = task.runner.run(check(self.name, subject))
        if finding.verdict is Verdict.SKIPPED:
            pytest.skip(finding.did)
        if finding.verdict is Verdict.FAILED:
            raise CheckFailedError("\n".join([finding.did, *(f"! {each}" for each in finding.problems)]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **options: Any) -> Any:
        """The report of a check; anything else as usual."""
        from agentrl_core import ConfigError

        if isinstance(excinfo.value, CheckFailedError | ConfigError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **options)

    def reportinfo(self) -> tuple[str, None, str]:
        """Where it is shown."""
        parent = self.parent.name if self.parent else ""
        return parent, None, f"{parent}: {self.name}"
