"""The engine's side: takes a version in, proves it, and swaps it in."""

import asyncio
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

from agentrl_workers.engines import Engine
from agentrl_workers.weights.buckets import TensorSpec, WeightSyncError, checksum, plan_buckets, unpack
from agentrl_workers.weights.group import join_group, leave_group, usual_backend


class EngineHost(Protocol):
    """A worker that owns an engine."""

    engine: Engine
    """The engine."""
    device: torch.device
    """Where its weights lie."""


class WeightReceiver:
    """A plugin of the rollout pool: receives while the engine samples, stops it only for the swap."""

    def __init__(self, worker: EngineHost, bucket_bytes: int) -> None:
        self._worker = worker
        self._bucket_bytes = bucket_bytes
        self._group: Any = None
        self._is_new = True

    def connect(
        self,
        name: str,
        address: str,
        port: int,
        rank: int,
        world_size: int,
        timeout_s: float,
        backend: str | None,
    ) -> None:
        """Join a transfer group under a rank from 1 on, in place of an earlier one."""
        leave_group(self._group)
        self._group = join_group(
            name=name,
            address=address,
            port=port,
            rank=rank,
            world_size=world_size,
            backend=backend or usual_backend(),
            timeout_s=timeout_s,
        )

    async def receive(self, version: int, manifest: list[TensorSpec]) -> dict[str, float]:
        """Take in a version and swap it in.

        Versions follow each other. The first one that a new engine receives may be any later one, and one
        that it has already, because the transfer failed elsewhere, is proved but not swapped in again.

        Raises:
            WeightSyncError: a checksum or the version differs, or a version was skipped; the engine keeps
                its old weights.
        """
        current = self._worker.engine.version
        if not (current <= version <= current + 1 or (self._is_new and version > current)):
            raise WeightSyncError(f"version {version} cannot follow version {current} of this engine")
        started = time.perf_counter()
        tensors, sums = await asyncio.to_thread(self._receive, manifest)
        if sums[0] != version:
            raise WeightSyncError(f"version {version} was announced, version {sums[0]} arrived")
        for (name, tensor), expected in zip(tensors.items(), sums[1:], strict=True):
            if checksum(tensor) != expected:
                raise WeightSyncError(f"`{name}` of version {version} arrived damaged")
        blocked_s = 0.0
        if version > current or self._is_new:
            blocked_s = await self._worker.engine.load_weights(tensors, version=version)
        self._is_new = False
        return {"seconds": time.perf_counter() - started, "blocked_s": blocked_s}

    def _receive(self, manifest: list[TensorSpec]) -> tuple[dict[str, torch.Tensor], list[int]]:
        device = self._worker.device
        tensors: dict[str, torch.Tensor] = {}
        for bucket in plan_buckets(manifest, bucket_bytes=self._bucket_bytes):
            size = sum(spec.num_bytes for spec in bucket)
            data = torch.empty(size, dtype=torch.uint8, device=device)
            dist.broadcast(data, group_src=0, group=self._group)
            tensors.update(unpack(data, bucket))
        seal = torch.empty(len(manifest) + 1, dtype=torch.int64, device=device)
        dist.broadcast(seal, group_src=0, group=self._group)
        return tensors, seal.tolist()
