"""What `agentrl-env serve` does: one worker here, or a crew of them in processes of their own."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import click

from agentrl_core import ConfigError
from agentrl_core.sockets import listen
from agentrl_env_sdk.target import load_task, sources_of
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.worker.crew import Crew, end_with_parent
from agentrl_env_sdk.worker.lifecycle import Worker, WorkerConfig
from agentrl_env_sdk.worker.runner import Runner

_GC_THRESHOLD = 50_000
_TOKEN = "AGENTRL_TOKEN"


@dataclass(frozen=True, slots=True)
class Serving:
    """What to serve, and how.

    Raises:
        ConfigError: the settings contradict each other.
    """

    target: str
    """The task: code, or a configuration."""
    name: str | None
    """Entry of the configuration."""
    config: WorkerConfig
    """How a worker is reached."""
    concurrency: int | None = None
    """Episodes at the same time in each process; the task's own where it is absent."""
    published: bool = False
    """Whether the task is written for the published SDK."""
    workers: int = 1
    """Processes."""
    reload: bool = False
    """Whether to begin anew when the code changes."""
    is_member: bool = False
    """Whether this is a process of a crew."""

    def __post_init__(self) -> None:
        if self.workers > 1 and self.config.controller is None:
            raise ConfigError(
                "--workers needs a --controller that tells their sessions apart; agents that come directly "
                "talk to one process, whose --concurrency may be raised instead"
            )
        if self.workers > 1 and self.reload:
            raise ConfigError("--reload is for one process; leave --workers away")
        if self.workers > 1 and self.config.advertise and urlsplit(self.config.advertise).port is None:
            raise ConfigError(
                f"--advertise must name a port, that of the first process, got `{self.config.advertise}`"
            )

    def run(self) -> int:
        """Serve until a signal ends it; returns an exit code.

        Raises:
            ConfigError: the task cannot be had, or the worker not be reached.
        """
        if self.workers > 1 or self.reload:
            return asyncio.run(self._crew())
        # Before there is a loop, since some tasks run one of their own to be made.
        asyncio.run(self._serve(self._load()))
        return 0

    def _load(self) -> Task:
        if not self.published:
            return load_task(self.target, self.name)
        from agentrl_env_sdk.published import load_published  # which takes over the name `agentrl.worker`

        return load_published(self.target, self.name)

    async def _serve(self, task: Task) -> None:
        """One worker, here."""
        if self.is_member:
            end_with_parent()
        runner = Runner(task, concurrency=self.concurrency)
        worker = Worker(runner, self.config, ready=_teller(task.task_name, self.config))
        # What has been loaded by now stays; to look through it again and again would make long pauses.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        await worker.serve()

    async def _crew(self) -> int:
        watched = sources_of(self.target, self.name) if self.reload else ()
        if self.config.token is not None:
            os.environ[_TOKEN] = self.config.token  # Arguments can be read by every user of the machine.
        crew = self if self.workers > 1 or not self.config.listens else self._settled()
        return await Crew(list(crew.commands()), watched=watched).run()

    def _settled(self) -> "Serving":
        """The same with a port that stays when the process begins anew."""
        port = self.config.port or _free_port(self.config.host)
        return replace(self, config=replace(self.config, port=port))

    def commands(self) -> Iterator[list[str]]:
        """The command of each process; ports count on."""
        for number in range(self.workers):
            yield [sys.executable, "-m", "agentrl_env_sdk.cli", "serve", *self._arguments(number)]

    def _arguments(self, number: int) -> list[str]:
        config = self.config
        options = {
            "--controller": config.controller,
            "--host": config.host,
            "--port": config.port + number if config.port else config.port,
            "--advertise": _counted(config.advertise, number),
            "--concurrency": self.concurrency,
            "--tls-cert": config.tls_cert,
            "--tls-key": config.tls_key,
            "--ca": config.ca,
        }
        given = [[name, str(value)] for name, value in options.items() if value is not None]
        flags = ["--member", *(["--published"] if self.published else [])]
        name = [] if self.name is None else [self.name]
        return [*flags, *(word for words in given for word in words), "--", self.target, *name]


def _teller(name: str, config: WorkerConfig) -> Callable[[str], None]:
    where = f"to {config.controller} as" if config.opens_stream else "on"
    return lambda address: click.echo(f"Serving {name} {where} {address}")


def _counted(advertised: str | None, number: int) -> str | None:
    """An address with its port raised."""
    parts = urlsplit(advertised or "")
    if parts.port is None or number == 0:
        return advertised
    host = parts.netloc.rpartition(":")[0]
    return parts._replace(netloc=f"{host}:{parts.port + number}").geturl()


def _free_port(host: str) -> int:
    with listen(host, 0) as listener:
        return listener.getsockname()[1]
