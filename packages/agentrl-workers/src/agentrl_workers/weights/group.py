"""The process group between the actor's rank 0 and the engines, which live in different pools."""

import contextlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def join_group(
    *, name: str, address: str, port: int, rank: int, world_size: int, backend: str, timeout_s: float
) -> dist.ProcessGroup:
    """Join a group that is independent of the process's default one; blocks until all have joined.

    Made step by step as SGLang makes its weight-update group, so that either can be the other side.
    """
    timeout = timedelta(seconds=timeout_s)
    meet = c10d.rendezvous(f"tcp://{address}:{port}", rank, world_size, timeout=timeout)  # pyright: ignore
    store, rank, world_size = next(meet)
    store.set_timeout(timeout)
    group, _ = c10d._new_process_group_helper(
        world_size,
        rank,
        [],
        dist.Backend(backend),
        c10d.PrefixStore(name, store),  # pyright: ignore
        group_name=name,  # pyright: ignore
        timeout=timeout,
    )
    assert isinstance(group, dist.ProcessGroup)
    c10d._world.pg_group_ranks[group] = {member: member for member in range(world_size)}
    return group


def usual_backend() -> str:
    """NCCL where there is CUDA, else gloo."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def leave_group(group: dist.ProcessGroup | None) -> None:
    """Forget a group that `join_group` made; its connections close once nobody waits on them."""
    if group is not None:
        with contextlib.suppress(RuntimeError, ValueError):
            dist.destroy_process_group(group)
