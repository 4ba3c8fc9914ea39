"""New weights for a running server: pause, receive, prove, continue."""

import asyncio
import contextlib
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from agentrl_core import PolicyVersion
from agentrl_workers.config import SGLangConfig
from agentrl_workers.engines.base import EngineError
from agentrl_workers.engines.sglang.client import Client, RefusedError
from agentrl_workers.engines.sglang.server import free_port
from agentrl_workers.engines.sglang.transfer import Broadcaster, aligned, check_alignment, in_thread
from agentrl_workers.engines.sglang.witness import Witness
from agentrl_workers.weights.buckets import TensorSpec, checksum, pack, plan_buckets, spec_of

_LET_GO_TIMEOUT_S = 10.0
_LAST_WORDS_S = 15.0


@dataclass(slots=True)
class ServerState:
    """What requests and updates of one server know of each other."""

    version: PolicyVersion
    """Version of the weights that sample now."""
    dtype: str | None
    """Type in which the server keeps them, where it is known."""
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while weights change."""
    num_aborts: int = 0
    """Pauses so far that ended what ran."""
    num_updates: int = 0
    """Updates so far."""
    failure: str | None = None
    """Why the server's weights are of no version; None while they are."""
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    """Tells this engine's cached prefixes from those of another run on the same server."""

    @property
    def cache_key(self) -> str:
        """Under which the server caches prefixes that the current weights computed."""
        return f"{self.nonce}-{self.num_updates}"


class WeightUpdates:
    """Runs one update of a server's weights after another.

    Args:
        client: speaks to the server.
        config: its settings.
        state: shared with the requests.
        world_size: ranks of the server.
        kill: ends the server where it is ours.
    """

    def __init__(
        self,
        client: Client,
        config: SGLangConfig,
        state: ServerState,
        *,
        world_size: int,
        kill: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._client = client
        self._config = config
        self._state = state
        self._world_size = world_size
        self._kill = kill
        self._witness = Witness()
        self._broadcaster: Broadcaster | None = None
        self._started = 0.0
        self._narrowed: set[str] = set()

    async def load(self, weights: Mapping[str, torch.Tensor], version: PolicyVersion) -> float:
        """Bring the server to a version; returns the seconds that sampling stood still.

        Raises:
            EngineError: it refused, did not answer in time, or did not take in what was sent.
        """
        sums = await asyncio.to_thread(_sums, weights) if self._config.verify else None
        if self._config.transfer == "disk":
            return await self._load_from_disk(weights, version, sums)
        specs = aligned(spec_of(name, tensor) for name, tensor in weights.items())
        buckets = plan_buckets(specs, bucket_bytes=self._config.bucket_bytes)
        if not buckets:
            raise EngineError(f"weights of version {version} hold nothing to send")
        broadcaster = await self._own_group(weights[specs[0].name].device)
        await self.begin()
        async with self._undone_on_failure():
            packed = _packed(weights, buckets[0])
            for bucket, following in zip(buckets, [*buckets[1:], None], strict=True):
                data = await packed
                if following is not None:
                    packed = _packed(weights, following)
                await self._deliver(broadcaster, bucket, data)
        return await self.finish(version, sums=sums)

    async def join_group(
        self, address: str, port: int, *, rank_offset: int, world_size: int, name: str, backend: str
    ) -> None:
        """Make the server's ranks join a group whose rank 0 sends; blocks until all of it has joined.

        Raises:
            EngineError: they did not join within the deadline.
        """
        body = {
            "master_address": address,
            "master_port": port,
            "rank_offset": rank_offset,
            "world_size": world_size,
            "group_name": name,
            "backend": backend,
        }
        stage, timeout_s = f"joining the group `{name}`", self._config.transfer_timeout_s
        await self._ask("/init_weights_update_group", body, stage=stage, timeout_s=timeout_s)

    async def leave_group(self, name: str) -> None:
        """Make the server's ranks leave a group.

        Raises:
            EngineError: there is no such group.
        """
        await self._ask("/destroy_weights_update_group", {"group_name": name}, stage=f"leaving `{name}`")

    async def begin(self) -> None:
        """Pause the server as configured and open an update.

        Raises:
            EngineError: an update is open, or the server refused or did not answer in time.
        """
        if not self._state.is_open.is_set():
            raise EngineError("an update of this server's weights is open; finish or abandon it first")
        self._state.is_open.clear()
        self._started = time.perf_counter()
        self._narrowed = set()
        async with self._undone_on_failure():
            await self._pause()
            stage = "opening an update of the weights"
            try:
                await self._ask("/begin_weight_update", {}, stage=stage)
            except RefusedError:
                # One that a dead predecessor left open, which may have loaded anything.
                await self._ask("/end_weight_update", {}, stage="closing an update that somebody left open")
                await self._ask("/begin_weight_update", {}, stage=stage)

    async def receive(self, bucket: Sequence[TensorSpec], *, group: str) -> None:
        """Make the server take part in the broadcast of one bucket and load it; call it before sending.

        Raises:
            EngineError: the server refused, failed to load, or did not answer in time; a sender whose
                broadcast it did not join must not wait for it.
        """
        async with self._undone_on_failure(may_hang=True):
            await self._receive(bucket, group)

    async def finish(self, version: PolicyVersion, *, sums: Mapping[str, int] | None) -> float:
        """Close an update, prove it, and go on sampling; returns the seconds since `begin`.

        Args:
            version: what the weights are from now on.
            sums: a checksum of each tensor that was sent, to compare with the server's; None for none.

        Raises:
            EngineError: the server refused, did not answer in time, or did not take in what was sent.
        """
        async with self._undone_on_failure():
            await self._ask("/end_weight_update", {}, stage="closing the update of the weights")
            return await self._adopt(version, sums)

    async def abandon(self, reason: str, *, stuck: bool = False) -> None:
        """Give up an update: what runs fails, and so does every request until a load succeeds.

        Args:
            reason: why, for whoever asks next.
            stuck: whether the server may wait for ever in a broadcast; it is ended where it is ours.
        """
        self._state.failure = f"the server's weights are of no version since an update failed: {reason}"
        try:
            if not stuck:
                await self._let_go()
        except EngineError:
            stuck = True
        if stuck and self._kill is not None:
            await self._kill()
        elif stuck:
            # Its answers never come, so nobody waits for them.
            await self._client.close()
        self._state.is_open.set()

    async def _let_go(self) -> None:
        """Bring a server that answers back to where it takes requests, without those that ran."""
        for path, body in (
            ("/end_weight_update", {}),
            ("/abort_request", {"abort_all": True}),
            ("/continue_generation", {}),
        ):
            with contextlib.suppress(RefusedError):
                await self._ask(path, body, stage="giving up an update", timeout_s=_LET_GO_TIMEOUT_S)

    async def checksums(self) -> list[dict[str, str]]:
        """The server's own checksums of its tensors, one mapping a rank."""
        answer = await self._ask("/weights_checker", {"action": "checksum"}, stage="the server's checksums")
        return [rank["checksums"] for rank in answer["ranks"]]

    async def flush_cache(self) -> None:
        """Forget all cached prefixes.

        Raises:
            EngineError: requests run.
        """
        # Without a wait of its own: a paused server's queue would count as running.
        await self._ask("/flush_cache", {}, stage="flushing the prefix cache")

    async def close(self, *, is_server_ours: bool) -> None:
        """Leave our own group; a server that lives on leaves it, too."""
        broadcaster, self._broadcaster = self._broadcaster, None
        if broadcaster is None:
            return
        if not is_server_ours:
            with contextlib.suppress(EngineError):
                await self.leave_group(broadcaster.name)
        broadcaster.leave()

    async def _pause(self) -> None:
        mode = self._config.pause
        if mode == "abort":
            self._state.num_aborts += 1
        await self._ask("/pause_generation", {"mode": mode}, stage=f"pausing the server ({mode})")

    async def _adopt(self, version: PolicyVersion, sums: Mapping[str, int] | None) -> float:
        body = {"new_version": str(version), "abort_all_requests": False}
        await self._ask("/update_weight_version", body, stage=f"naming version {version}")
        if self._config.pause != "in_place":
            await self.flush_cache()
        if sums is not None:
            self._witness.check(sums, await self.checksums(), narrowed=self._narrowed)
        self._state.version, self._state.failure = version, None
        self._state.num_updates += 1
        await self._ask("/continue_generation", {}, stage="continuing")
        self._state.is_open.set()
        return time.perf_counter() - self._started

    async def _own_group(self, device: torch.device) -> Broadcaster:
        if self._broadcaster is not None:
            return self._broadcaster
        config = self._config
        backend = config.backend or ("nccl" if device.type == "cuda" else "gloo")
        name, port, size = f"engine-{uuid.uuid4().hex[:8]}", free_port(config.address), 1 + self._world_size
        theirs = asyncio.ensure_future(
            self.join_group(config.address, port, rank_offset=1, world_size=size, name=name, backend=backend)
        )
        ours = asyncio.ensure_future(
            Broadcaster.join(
                name=name,
                address=config.address,
                port=port,
                world_size=size,
                backend=backend,
                timeout_s=config.transfer_timeout_s,
            )
        )
        await _both(ours, theirs, stage=f"joining the group `{name}`", timeout_s=config.transfer_timeout_s)
        self._broadcaster = ours.result()
        return self._broadcaster

    async def _receive(self, bucket: Sequence[TensorSpec], group: str) -> None:
        check_alignment(bucket)
        self._narrowed.update(spec.name for spec in bucket if spec.dtype != self._state.dtype)
        body = {
            "names": [spec.name for spec in bucket],
            "dtypes": [spec.dtype for spec in bucket],
            "shapes": [list(spec.shape) for spec in bucket],
            "group_name": group,
            "load_format": "flattened_bucket",
            "flush_cache": False,
        }
        stage, timeout_s = f"receiving {_span(bucket)}", self._config.transfer_timeout_s
        await self._ask("/update_weights_from_distributed", body, stage=stage, timeout_s=timeout_s)

    async def _deliver(
        self, broadcaster: Broadcaster, bucket: Sequence[TensorSpec], data: torch.Tensor
    ) -> None:
        timeout_s = self._config.transfer_timeout_s
        async with self._undone_on_failure(may_hang=True):
            theirs = asyncio.ensure_future(self._receive(bucket, broadcaster.name))
            ours = asyncio.ensure_future(broadcaster.broadcast(data))
            try:
                await _both(ours, theirs, stage=f"broadcasting {_span(bucket)}", timeout_s=timeout_s)
            except BaseException as error:
                self._broadcaster = None
                if isinstance(error, RefusedError):
                    # The server closes its end, which ends a broadcast of ours that it never joined.
                    with contextlib.suppress(EngineError):
                        await self.leave_group(broadcaster.name)
                        await in_thread(broadcaster.leave)
                raise

    async def _load_from_disk(
        self, weights: Mapping[str, torch.Tensor], version: PolicyVersion, sums: Mapping[str, int] | None
    ) -> float:
        config = self._config
        folder = Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=config.transfer_folder))
        try:
            await asyncio.to_thread(_save, weights, folder)
            if not self._state.is_open.is_set():
                raise EngineError("an update of this server's weights is open; finish or abandon it first")
            self._state.is_open.clear()
            self._started = time.perf_counter()
            self._narrowed = {
                name for name, tensor in weights.items() if spec_of(name, tensor).dtype != self._state.dtype
            }
            async with self._undone_on_failure(may_hang=True):
                await self._pause()
                body = {"model_path": str(folder), "load_format": "safetensors", "flush_cache": False}
                stage, timeout_s = f"reading version {version} from files", config.transfer_timeout_s
                await self._ask("/update_weights_from_disk", body, stage=stage, timeout_s=timeout_s)
                return await self._adopt(version, sums)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    @contextlib.asynccontextmanager
    async def _undone_on_failure(self, *, may_hang: bool = False) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            if not self._state.is_open.is_set():
                reason = str(error) or type(error).__name__
                stuck = may_hang and not isinstance(error, RefusedError)
                await asyncio.shield(self.abandon(reason, stuck=stuck))
            raise

    async def _ask(
        self, path: str, body: Mapping[str, Any], *, stage: str, timeout_s: float | None = None
    ) -> Any:
        limit_s = timeout_s or self._config.control_timeout_s
        answer = await self._client.ask(path, body, stage=stage, timeout_s=limit_s)
        if isinstance(answer, Mapping) and answer.get("success") is False:
            raise RefusedError(f"{stage}: the server said no: {answer.get('message')}")
        return answer


async def _both(
    ours: asyncio.Future[Any], theirs: asyncio.Future[Any], *, stage: str, timeout_s: float
) -> None:
    """Wait for the two sides of one collective step; the first failure of either ends the wait."""
    try:
        _, waiting = await asyncio.wait(
            {ours, theirs}, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION
        )
        if waiting == {theirs} and ours.exception() is not None:
            # A connection that broke is the server's death seen from here; its own words say more.
            await asyncio.wait({theirs}, timeout=_LAST_WORDS_S)
        for future in (theirs, ours):
            if future.done():
                future.result()
        if waiting:
            side = "this side" if ours in waiting else "the server"
            raise EngineError(f"{stage}: {side} was not done within {timeout_s:g} s")
    except RuntimeError as error:
        raise EngineError(f"{stage}: {error}") from error
    finally:
        for future in (ours, theirs):
            future.cancel()
            if future.done() and not future.cancelled():
                future.exception()


def _span(bucket: Sequence[TensorSpec]) -> str:
    return f"`{bucket[0].name}` to `{bucket[-1].name}`" if bucket else "an empty bucket"


def _sums(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    return {name: checksum(tensor) for name, tensor in weights.items()}


def _packed(weights: Mapping[str, torch.Tensor], bucket: Sequence[TensorSpec]) -> asyncio.Task[torch.Tensor]:
    """The bytes of a bucket, put together while the one before it is on its way."""
    return asyncio.create_task(asyncio.to_thread(pack, [weights[spec.name] for spec in bucket]))


def _save(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write a file that `transformers` names the same; tensors that share memory are written apart."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in weights.items():
        own = tensor.detach().cpu().contiguous()
        tensors[name] = own.clone() if own.data_ptr() in seen else own
        seen.add(own.data_ptr())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
