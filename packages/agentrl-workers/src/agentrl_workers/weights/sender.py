"""The actor's side: streams a version of the weights to every engine."""

import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist

from agentrl_workers.weights.buckets import TensorSpec, checksum, pack, plan_buckets, spec_of
from agentrl_workers.weights.group import join_group, leave_group, usual_backend


class WeightSource(Protocol):
    """A worker that has weights to send."""

    rank: int
    """Rank within its pool; rank 0 sends."""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and full tensors, in the same order on every rank; gathering them is collective."""
        ...


class WeightSender:
    """A plugin of the actor pool: every rank helps to gather, rank 0 broadcasts."""

    def __init__(self, worker: WeightSource, bucket_bytes: int) -> None:
        self._worker = worker
        self._bucket_bytes = bucket_bytes
        self._group: Any = None
        self._device = torch.device("cpu")
        self._manifest: list[TensorSpec] = []

    def connect(
        self,
        name: str,
        address: str,
        port: int,
        world_size: int,
        timeout_s: float,
        backend: str | None,
    ) -> None:
        """Join a transfer group as its rank 0, in place of an earlier one; other ranks stay out."""
        if self._worker.rank == 0:
            leave_group(self._group)
            backend = backend or usual_backend()
            self._device = torch.device("cpu" if backend == "gloo" else "cuda")
            self._group = join_group(
                name=name,
                address=address,
                port=port,
                rank=0,
                world_size=world_size,
                backend=backend,
                timeout_s=timeout_s,
            )

    def manifest(self) -> list[TensorSpec]:
        """What will be sent, in order; collective the first time."""
        self._manifest = self._manifest or [spec_of(name, tensor) for name, tensor in self._worker.weights()]
        return self._manifest

    def publish(self, version: int) -> dict[str, float]:
        """Broadcast all tensors, then their checksums with the version."""
        started = time.perf_counter()
        sizes = [len(bucket) for bucket in plan_buckets(self.manifest(), bucket_bytes=self._bucket_bytes)]
        tensors = self._worker.weights()
        sums: list[int] = []
        sent = 0
        for size in sizes:
            bucket = [tensor for _, tensor in (next(tensors) for _ in range(size))]
            if self._group is None:
                continue
            data = pack(bucket).to(self._device)
            sums += [checksum(tensor) for tensor in bucket]
            dist.broadcast(data, group_src=0, group=self._group)
            sent += data.numel()
        if self._group is not None:
            seal = torch.tensor([version, *sums], dtype=torch.int64, device=self._device)
            dist.broadcast(seal, group_src=0, group=self._group)
        return {"bytes": float(sent), "seconds": time.perf_counter() - started}
