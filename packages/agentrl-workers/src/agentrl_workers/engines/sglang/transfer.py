"""Our end of a server's weight group: rank 0, which broadcasts."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from agentrl_workers.engines.base import EngineError
from agentrl_workers.weights.buckets import TensorSpec
from agentrl_workers.weights.group import join_group

_T = TypeVar("_T")
_POLL_S = 0.001


def aligned(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Tensors in the order in which they may share a bucket: wide types first, empty ones left out.

    The server looks at each tensor where it lies in the bucket, so it must start at a multiple of its item.
    """
    return sorted(
        (spec for spec in specs if spec.num_bytes), key=lambda spec: -getattr(torch, spec.dtype).itemsize
    )


def check_alignment(bucket: Sequence[TensorSpec]) -> None:
    """See that the server can look at each tensor where it lies in the bucket.

    Raises:
        EngineError: it cannot, or the bucket holds nothing.
    """
    start = 0
    for spec in bucket:
        if start % getattr(torch, spec.dtype).itemsize:
            raise EngineError(
                f"`{spec.name}` ({spec.dtype}) would start at byte {start} of its bucket, no multiple of its "
                "item's size; order a bucket's tensors by the size of their items, the widest first"
            )
        start += spec.num_bytes
    if not start:
        raise EngineError("a bucket without a single byte cannot be broadcast; leave empty tensors out")


class Broadcaster:
    """Rank 0 of a group whose other ranks are a server's."""

    def __init__(self, group: dist.ProcessGroup, name: str) -> None:
        self.name = name
        self._group = group
        self._works: list[Any] = []

    @classmethod
    async def join(
        cls, *, name: str, address: str, port: int, world_size: int, backend: str, timeout_s: float
    ) -> "Broadcaster":
        """Open the group and wait for the others."""
        group = await in_thread(
            lambda: join_group(
                name=name,
                address=address,
                port=port,
                rank=0,
                world_size=world_size,
                backend=backend,
                timeout_s=timeout_s,
            )
        )
        return cls(group, name)

    async def broadcast(self, data: torch.Tensor) -> None:
        """Send a bucket; cancelling the call leaves the group unusable."""
        # NCCL meets its peers in the first call, which blocks.
        work = await in_thread(lambda: dist.broadcast(data, group_src=0, group=self._group, async_op=True))
        assert work is not None
        while not work.is_completed():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(_POLL_S)
        await in_thread(work.wait)

    def leave(self) -> None:
        """Forget the group."""
        dist.destroy_process_group(self._group)


async def in_thread(call: Callable[[], _T]) -> _T:
    """Run a call that may block for ever on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        try:
            result, failure = call(), None
        except BaseException as error:
            result, failure = None, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="sglang-transfer", daemon=True).start()
    return await future
