"""The server's process: its command line, its start, its last words, its end."""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import torch
import yaml

from agentrl_workers.config import SGLangConfig
from agentrl_workers.engines.base import EngineError

_TAIL_BYTES = 16_384
_TAIL_LINES = 12
_POLL_S = 0.25
_PROBE_TIMEOUT_S = 5.0
_STOP_TIMEOUT_S = 5.0
_OBITUARY_WAIT_S = 10.0
"""A server whose scheduler died gathers facts for some seconds before it ends."""
_PORT_TRIES = 3

CPU_ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-overlap-schedule", "--cuda-graph-backend-decode", "disabled"),
    *("--cuda-graph-backend-prefill", "disabled"),
)
"""What a server on a machine without CUDA needs."""

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def command_line(
    config: SGLangConfig,
    *,
    model: str,
    dtype: str,
    context_length: int,
    num_slots: int,
    version: int,
    port: int,
    on_cpu: bool,
) -> list[str]:
    """The words that start a server.

    Args:
        config: its settings.
        model: folder of the model.
        dtype: type of the weights, `float32` or `bfloat16`.
        context_length: longest sequence in tokens.
        num_slots: requests that run at the same time.
        version: of the weights in the folder.
        port: where it listens.
        on_cpu: whether there is no CUDA.
    """
    words = [
        *(config.python or sys.executable, "-m", "sglang.launch_server"),
        *("--model-path", model, "--dtype", dtype, "--skip-tokenizer-init"),
        *("--context-length", str(context_length), "--max-running-requests", str(num_slots)),
        *("--tp-size", str(config.tensor_parallel), "--weight-version", str(version)),
        *("--host", "127.0.0.1", "--port", str(port), "--incremental-streaming-output"),
        *("--log-level-http", "warning"),
    ]
    if on_cpu:
        # Nothing bounds the cache by itself where there is no GPU memory to fill.
        words += [*CPU_ARGUMENTS, "--max-total-tokens", str(min(num_slots * context_length, 2**18))]
    return [*words, *config.arguments]


class Server:
    """A server that this process started.

    It has a process group of its own and ends when the process that started it ends, however that ends.

    Args:
        config: its settings.
        log: file that gets all it says.
    """

    def __init__(self, config: SGLangConfig, log: Path) -> None:
        self.log = log
        self.url = ""
        self._config = config
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process; None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative for a signal, None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(
        self, *, model: str, dtype: str, context_length: int, num_slots: int, version: int
    ) -> None:
        """Start it and wait until it takes requests.

        Raises:
            EngineError: it ended, or was not ready in time; the message has its last lines.
        """
        for attempt in range(1, _PORT_TRIES + 1):
            port = free_port()
            words = command_line(
                self._config,
                model=model,
                dtype=dtype,
                context_length=context_length,
                num_slots=num_slots,
                version=version,
                port=port,
                on_cpu=not torch.cuda.is_available(),
            )
            try:
                with self._secrets() as more:
                    await self._spawn([*words, *more])
                    await self._wait_ready(port)
            except BaseException as error:
                await self.stop()
                lost_port = isinstance(error, EngineError) and "address already in use" in self.words()
                if not lost_port or attempt == _PORT_TRIES:
                    raise
            else:
                return

    async def stop(self) -> None:
        """End it and all that it started, politely first."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            # The group outlives its leader where a child hangs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            if process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_TIMEOUT_S):
                        await process.wait()

    async def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def obituary(self) -> str:
        """How it ended and what it said last; waits a little for a process that is about to end."""
        process = self._process
        if process is None:
            return "it was never started"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OBITUARY_WAIT_S):
                await process.wait()
        if process.returncode is None:
            return f"process {process.pid} still runs; it said last: {self.words()}"
        return (
            f"process {process.pid} ended with exit code {process.returncode}; it said last: {self.words()}"
        )

    def words(self) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(log.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return "nothing"
        kept = [line.strip()[:300] for line in lines if line.strip()]
        return " | ".join(kept[-_TAIL_LINES:]) or "nothing"

    @contextlib.contextmanager
    def _secrets(self) -> Iterator[list[str]]:
        """More words for the command line; all can see it, so a key stands in a file meanwhile."""
        if not self._config.api_key:
            yield []
            return
        path = self.log.with_suffix(".secrets.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump({"api-key": self._config.api_key}))
        try:
            yield ["--config", str(path)]
        finally:
            path.unlink(missing_ok=True)

    async def _spawn(self, words: Sequence[str]) -> None:
        # The context has spare tokens that are never filled, so it may be longer than the model's.
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        }
        if not torch.cuda.is_available():
            environment["SGLANG_USE_CPU_ENGINE"] = "1"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**environment, **self._config.environment},
                    start_new_session=True,
                    preexec_fn=_die_with_owner,
                )
            except OSError as error:
                raise EngineError(
                    f"the SGLang server cannot be started: `{words[0]}`: {error.strerror}; `python` must "
                    "name the interpreter of an environment that has SGLang"
                ) from error

    async def _wait_ready(self, port: int) -> None:
        process = self._process
        assert process is not None
        self.url = f"http://127.0.0.1:{port}"
        ended = asyncio.ensure_future(process.wait())
        try:
            async with asyncio.timeout(self._config.start_timeout_s), aiohttp.ClientSession() as session:
                while not ended.done():
                    if await is_ready(session, self.url):
                        return
                    await asyncio.wait({ended}, timeout=_POLL_S)
        except TimeoutError as error:
            raise EngineError(
                f"the SGLang server was not ready within {self._config.start_timeout_s:g} s; "
                f"it said last: {self.words()}"
            ) from error
        finally:
            ended.cancel()
        raise EngineError(f"the SGLang server did not start: {await self.obituary()}")


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a server takes requests; it does not listen at all before its model is loaded."""
    timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
    try:
        async with session.get(f"{url}/ready", timeout=timeout) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, ConnectionError):
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _die_with_owner() -> None:
    """Ask Linux to end this child when its parent dies, even of SIGKILL; its own children do the same."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
