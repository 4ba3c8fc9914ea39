"""The engine contract over a server of SGLang."""

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl_core import PolicyVersion
from agentrl_workers.config import SGLangConfig
from agentrl_workers.engines.base import EngineError, Generation, OnToken, SamplingParams
from agentrl_workers.engines.sglang.client import Client
from agentrl_workers.engines.sglang.facts import SPARE_TOKENS, ask_facts, check_facts, vocabulary_of
from agentrl_workers.engines.sglang.server import Server
from agentrl_workers.engines.sglang.updates import ServerState, WeightUpdates
from agentrl_workers.engines.sglang.wire import (
    JoinedReply,
    Reply,
    generate_body,
    read_prompt_logps,
    score_body,
)
from agentrl_workers.weights.buckets import TensorSpec


class SGLangEngine:
    """Samples on a server of SGLang, started as a child process or running elsewhere.

    A prefix is reused only under the version of the weights that computed it: each request names its
    version as a key of the server's cache. Requests that weights interrupt with `pause: abort` are asked
    again for the rest of their reply, so no caller sees the pause.

    Two differences from the embedded engine: the server also ends a reply at the end token that the model's
    own settings name, unless `stop_token_ids` is empty; and a request's `seed` counts only where the server
    was started with `--enable-deterministic-inference`.

    Make it with `start`.
    """

    def __init__(
        self,
        config: SGLangConfig,
        *,
        server: Server | None,
        facts: Mapping[str, Any],
        context_length: int,
        version: PolicyVersion,
    ) -> None:
        self._server = server
        self._context_length = context_length
        self._world_size = int(facts["tp_size"])
        self._vocabulary = vocabulary_of(facts["model_path"])
        self._url = server.url if server is not None else str(config.url)
        dtype = facts.get("dtype")
        self._state = ServerState(version, dtype if dtype in ("float32", "bfloat16", "float16") else None)
        self._state.is_open.set()
        self._client = Client(self._url, config.api_key, self._obituary)
        self._updates = WeightUpdates(
            self._client,
            config,
            self._state,
            world_size=self._world_size,
            kill=None if server is None else server.kill,
        )
        self._loading = asyncio.Lock()
        self._aborting: set[asyncio.Task[None]] = set()
        self._closed = False
        self._config = config
        self.num_sampled_tokens = 0

    @classmethod
    async def start(
        cls,
        config: SGLangConfig,
        *,
        model: str,
        dtype: str,
        context_length: int,
        num_slots: int,
        version: PolicyVersion = 0,
        log: Path,
    ) -> "SGLangEngine":
        """Start a server, or attach to the one that the settings name.

        Args:
            config: the server's settings.
            model: folder of the model; a running server has its own.
            dtype: type of the weights, `float32` or `bfloat16`; a running server has its own.
            context_length: longest sequence in tokens, prompt and reply together.
            num_slots: requests that run at the same time; a running server has its own.
            version: of the weights that the server starts with; a running one is believed to have them.
            log: file for what a new server says.

        Raises:
            EngineError: the server did not start or answer in time, or is not one that weights can reach.
        """
        server = None
        if config.url is None:
            server = Server(config, log)
            await server.start(
                model=model,
                dtype=dtype,
                context_length=context_length + SPARE_TOKENS,
                num_slots=num_slots,
                version=version,
            )
        url = config.url or (server.url if server is not None else "")
        try:
            facts = await ask_facts(url.rstrip("/"), config)
            check_facts(facts, url=url, context_length=context_length)
        except BaseException:
            if server is not None:
                await server.stop()
            raise
        engine = cls(config, server=server, facts=facts, context_length=context_length, version=version)
        if server is None:
            body = {"new_version": str(version), "abort_all_requests": False}
            await engine._control("/update_weight_version", body, stage=f"naming version {version}")
        return engine

    @property
    def version(self) -> PolicyVersion:
        """Version of the weights that sample now."""
        return self._state.version

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens, prompt and reply together."""
        return self._context_length

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._url

    @property
    def world_size(self) -> int:
        """Ranks of the server, each of which receives weights."""
        return self._world_size

    @property
    def pid(self) -> int | None:
        """The server's process; None where it is not ours."""
        return None if self._server is None else self._server.pid

    def alive(self) -> bool:
        """Whether requests can succeed: not closed, weights of a version, no process of ours that ended."""
        ended = self._server is not None and self._server.exit_code is not None
        return not (self._closed or ended or self._state.failure)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, on_token: OnToken | None = None
    ) -> Generation:
        """Sample one reply; cancelling the call aborts the request on the server.

        Raises:
            EngineError: the prompt does not fit, or the server refuses, has ended or was closed.
        """
        self._check_prompt(prompt_ids, room=1)
        whole = JoinedReply()
        room = min(sampling.max_tokens, self._context_length - len(prompt_ids))
        while True:
            await self._state.is_open.wait()
            self._check_alive()
            num_aborts = self._state.num_aborts
            rest = sampling.model_copy(update={"max_tokens": room - len(whole.token_ids)})
            reply, ended = await self._ask([*prompt_ids, *whole.token_ids], rest, on_token)
            self._check_failure()
            whole.add(reply)
            paused = reply.finish_reason == "abort" and not ended and self._state.num_aborts != num_aborts
            if not paused:
                break
        self.num_sampled_tokens += len(whole.token_ids)
        return whole.generation(reply.finish_reason or "abort")

    async def canary(self, prompt_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of a prompt's tokens from the second on, under the weights that sample now.

        Raises:
            EngineError: as for `generate`.
        """
        self._check_prompt(prompt_ids, room=0)
        await self._state.is_open.wait()
        self._check_alive()
        body = score_body(prompt_ids, rid=uuid.uuid4().hex, cache_key=self._state.cache_key)
        answer = await self._control("/generate", body, stage="scoring a prompt")
        return read_prompt_logps(answer, length=len(prompt_ids))

    async def load_weights(self, weights: Mapping[str, torch.Tensor], *, version: PolicyVersion) -> float:
        """Bring the server to a version from this process; returns the seconds that sampling stood still.

        Raises:
            EngineError: the server refused, did not answer in time, or did not take in what was sent. Its
                weights are then of no version, and requests are refused until a load succeeds; a server of
                ours that may be stuck in a broadcast is ended.
        """
        async with self._loading:
            self._check_process()
            return await self._updates.load(weights, version)

    async def join_weights_group(
        self, address: str, port: int, *, rank_offset: int, world_size: int, name: str, backend: str
    ) -> None:
        """Make the server's ranks join a group whose rank 0 broadcasts; blocks until all of it has joined.

        Args:
            address: where rank 0 hosts the group's store.
            port: its port.
            rank_offset: rank that the server's first rank takes; 1 for the first server.
            world_size: 1 and the `world_size` of every server of the group.
            name: of the group.
            backend: `nccl` or `gloo`.

        Raises:
            EngineError: they did not join within `transfer_timeout_s`.
        """
        self._check_process()
        await self._updates.join_group(
            address, port, rank_offset=rank_offset, world_size=world_size, name=name, backend=backend
        )

    async def leave_weights_group(self, name: str) -> None:
        """Make the server's ranks leave a group, which also ends a broadcast that waits for them.

        Raises:
            EngineError: there is no such group.
        """
        await self._updates.leave_group(name)

    async def begin_update(self) -> None:
        """Pause the server and open an update of its weights; `finish_update` or `abandon_update` ends it.

        Raises:
            EngineError: an update is open, or the server refused or did not answer in time.
        """
        self._check_process()
        await self._updates.begin()

    async def receive_bucket(self, bucket: Sequence[TensorSpec], *, group: str) -> None:
        """Make the server take part in one broadcast and load what comes; await it beside the sender.

        The sender broadcasts the bytes of the tensors one after another, uint8, from rank 0. A bucket that
        mixes types holds the wide ones first.

        Raises:
            EngineError: the server refused, failed to load, or did not answer in time. Where this is raised
                before the broadcast is done, the server did not join it: the sender must not wait.
        """
        await self._updates.receive(bucket, group=group)

    async def finish_update(self, version: PolicyVersion, *, sums: Mapping[str, int] | None = None) -> float:
        """Close an update, prove it, and go on sampling; returns the seconds since `begin_update`.

        Args:
            version: what the weights are from now on.
            sums: a checksum of each tensor that was sent; compared, load after load, with the server's own.

        Raises:
            EngineError: the server refused, did not answer in time, or did not take in what was sent.
        """
        return await self._updates.finish(version, sums=sums)

    async def abandon_update(self, reason: str, *, stuck: bool = False) -> None:
        """Give up an update: requests are refused until a load succeeds.

        Args:
            reason: why, for whoever asks next.
            stuck: whether the server may wait for ever in a broadcast; it is ended where it is ours.
        """
        await self._updates.abandon(reason, stuck=stuck)

    async def checksums(self) -> list[dict[str, str]]:
        """The server's own checksums of its tensors, one mapping a rank; servers of one layout agree."""
        return await self._updates.checksums()

    async def flush_cache(self) -> None:
        """Forget all cached prefixes.

        Raises:
            EngineError: requests run.
        """
        await self._updates.flush_cache()

    async def check_health(self) -> None:
        """See that the server still samples, which takes it about a second; not while weights change.

        Raises:
            EngineError: it does not, or does not answer in time.
        """
        self._check_alive()
        await self._control("/health_generate", None, stage="the server's health")

    async def num_running(self) -> int:
        """Requests that the server runs or holds in its queue."""
        answer = await self._control("/v1/loads", None, stage="the server's load")
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in answer["loads"])

    async def close(self) -> None:
        """Abort what runs; end the server where it is ours, leave it as it is where not."""
        if self._closed:
            return
        self._closed = True
        if self._aborting:
            await asyncio.wait(self._aborting)
        if self._server is not None:
            await self._server.stop()
        await self._updates.close(is_server_ours=self._server is not None)
        await self._client.close()

    async def _ask(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, on_token: OnToken | None
    ) -> tuple[Reply, bool]:
        """One request to its end, and whether `on_token` ended it."""
        rid = uuid.uuid4().hex
        body = generate_body(
            prompt_ids, sampling, rid=rid, cache_key=self._state.cache_key, stream=on_token is not None
        )
        reply, ended = Reply(), False
        try:
            if on_token is None:
                reply.add(await self._client.ask("/generate", body, stage="a reply", timeout_s=None))
            else:
                async with contextlib.aclosing(
                    self._client.stream("/generate", body, stage="a reply")
                ) as answers:
                    async for answer in answers:
                        new = reply.add(answer)
                        if not ended and any(on_token(token_id, logp) for token_id, logp in new):
                            ended = True
                            self._abort(rid)
        except BaseException:
            self._abort(rid)
            raise
        if reply.finish_reason is None:
            raise EngineError(f"the server's stream ended within a reply; {await self._obituary()}")
        return reply, ended

    def _abort(self, rid: str) -> None:
        """Tell the server that nobody waits for a request."""
        task = asyncio.create_task(self._send_abort(rid))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _send_abort(self, rid: str) -> None:
        with contextlib.suppress(EngineError):
            await self._control("/abort_request", {"rid": rid}, stage="aborting a request")

    async def _control(self, path: str, body: Mapping[str, Any] | None, *, stage: str) -> Any:
        return await self._client.ask(path, body, stage=stage, timeout_s=self._config.control_timeout_s)

    async def _obituary(self) -> str:
        if self._closed:
            return "the engine was closed"
        if self._state.failure is not None:
            return self._state.failure
        if self._server is None:
            return "this server is not ours, so see its own log"
        return await self._server.obituary()

    def _check_prompt(self, prompt_ids: Sequence[int], *, room: int) -> None:
        longest = self._context_length - room
        if not 0 < len(prompt_ids) <= longest:
            raise EngineError(
                f"a prompt needs 1 to {longest} tokens to leave room for a reply, got {len(prompt_ids)}"
            )
        # The server does not look, and dies of an id that its embedding does not have.
        low, high = min(prompt_ids), max(prompt_ids)
        if low < 0 or (self._vocabulary is not None and high >= self._vocabulary):
            wrong = low if low < 0 else high
            raise EngineError(f"token id {wrong} is not in the model's vocabulary of {self._vocabulary}")

    def _check_alive(self) -> None:
        self._check_process()
        self._check_failure()

    def _check_process(self) -> None:
        if self._closed:
            raise EngineError("the engine has stopped: closed")
        if self._server is not None and self._server.exit_code is not None:
            raise EngineError(
                f"the SGLang server ended with exit code {self._server.exit_code}; it said last: "
                f"{self._server.words()}"
            )

    def _check_failure(self) -> None:
        if self._state.failure is not None:
            raise EngineError(self._state.failure)
