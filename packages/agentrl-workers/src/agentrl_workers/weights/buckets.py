"""How tensors travel: a manifest, the same plan of buckets on both sides, and a checksum each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from agentrl_core import AgentRLError


class WeightSyncError(AgentRLError):
    """New weights did not arrive as they were sent; the message names the tensor and the version."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data."""

    name: str
    """Name in the model's state dict."""
    shape: tuple[int, ...]
    """Shape."""
    dtype: str
    """Name of the torch dtype."""

    @property
    def num_bytes(self) -> int:
        """Size of the data."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * getattr(torch, self.dtype).itemsize


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """The description of a tensor."""
    return TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def plan_buckets(manifest: Sequence[TensorSpec], *, bucket_bytes: int) -> list[list[TensorSpec]]:
    """Consecutive tensors together, at most `bucket_bytes` a bucket; a larger tensor goes alone.

    Every tensor of the manifest is in exactly one bucket, the one that fills it included.
    """
    buckets: list[list[TensorSpec]] = []
    size = 0
    for spec in manifest:
        if not buckets or size + spec.num_bytes > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(spec)
        size += spec.num_bytes
    return buckets


def pack(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """The bytes of tensors one after another, uint8."""
    return torch.cat([tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors])


def unpack(data: torch.Tensor, bucket: Sequence[TensorSpec]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a bucket's bytes, copied so that each is aligned."""
    start = 0
    for spec in bucket:
        piece = data[start : start + spec.num_bytes].clone()
        start += spec.num_bytes
        yield spec.name, piece.view(getattr(torch, spec.dtype)).view(spec.shape)


def checksum(tensor: torch.Tensor) -> int:
    """A 64-bit sum of the tensor's bytes in which every position has an odd weight of its own.

    Any change of a single byte changes it; it runs where the tensor lies.
    """
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    total = 0
    chunk = 1 << 22
    for start in range(0, data.numel(), chunk):
        part = data[start : start + chunk].to(torch.int64) + 1
        place = torch.arange(start, start + part.numel(), device=data.device, dtype=torch.int64)
        total += int((part * (place * 2_654_435_761 * 2 + 1)).sum())
    return (total + 2**63) % 2**64 - 2**63
