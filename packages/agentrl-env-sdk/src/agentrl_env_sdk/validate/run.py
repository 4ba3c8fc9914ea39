"""Runs checks one after another; one that breaks is a finding, not the end."""

import dataclasses
import functools
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from agentrl_core import ConfigError
from agentrl_env_sdk.oracle import Oracle
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.validate.checks import CHECKS
from agentrl_env_sdk.validate.guard import guarded
from agentrl_env_sdk.validate.report import Finding, Report, Verdict
from agentrl_env_sdk.validate.subject import Settings, Subject


async def validate(
    task: Task,
    *,
    target: str = "",
    oracle: Oracle | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    settings: Settings | None = None,
    source: Sequence[str] = (),
    on_finding: Callable[[Finding], None] | None = None,
) -> Report:
    """Check a task.

    Args:
        task: the task; its episodes run in this process, or in forks of it where it asks for processes.
        target: what to call it in the report.
        oracle: plays it best; the task's own where it is absent.
        only: names of the checks to run; all where it is empty.
        skip: names of checks to leave out.
        settings: how much is played and how long is waited.
        source: what `load_task` finds the same task with; one check then looks at it in another process, too.
        on_finding: told of each finding as it comes.

    Raises:
        ConfigError: a check or the split is unknown, or the task has no samples.
    """
    subject = Subject(task, oracle=oracle, settings=settings, source=source)
    findings = []
    for name in chosen(only=only, skip=skip):
        findings.append(await check(name, subject))
        if on_finding is not None:
            on_finding(findings[-1])
    return Report(target or type(task).__name__, task.task_name, tuple(subject.samples), tuple(findings))


async def check(name: str, subject: Subject) -> Finding:
    """Run one check, in a process of its own where the task asks for processes.

    What it raises is a problem of its own.
    """
    began = time.monotonic()
    alone = functools.partial(_check, name, subject)
    finding = await (guarded(name, alone) if subject.has_process else alone())
    return dataclasses.replace(finding, seconds=time.monotonic() - began)


async def _check(name: str, subject: Subject) -> Finding:
    with _quiet():
        try:
            return await CHECKS[name](subject)
        except Exception as error:
            told = "".join(traceback.format_exception(error)).rstrip()
            problem = f"the check broke off with {type(error).__name__}: {error}\n{told}"
            return Finding(name, Verdict.FAILED, "could not be carried out", (problem,))


def chosen(*, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[str]:
    """Names of the checks that are wanted.

    Raises:
        ConfigError: one is unknown.
    """
    for name in (*only, *skip):
        if name not in CHECKS:
            raise ConfigError(f"there is no check `{name}`; there are {', '.join(CHECKS)}")
    return [name for name in CHECKS if (not only or name in only) and name not in skip]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the log of failures that are brought about on purpose; the findings tell of them."""
    log = logging.getLogger("agentrl_env_sdk")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
