"""Replicas of a worker class as Ray actors, called together through one handle.

spawn(Actor, placement)(config) -> CollectiveHandle
handle.step(batch)               -> one object ref a replica
handle.dispatch_rank(0).save()   -> rank 0 alone
handle.register_plugin("weights", WeightSender, ...); handle.plugin("weights").publish(...)
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl_core import AgentRLError
from agentrl_workers.placement import Placement

_GROUP_TIMEOUT = timedelta(minutes=10)


class PoolError(AgentRLError):
    """A replica failed or died; the message names the pool, the rank and the cause."""


class ReplicaDiedError(PoolError):
    """A replica's process is gone."""


class _Replica:
    """Holds one worker and its plugins in a process of its own.

    Coroutines run on the event loop; other methods run one after another on a thread of their own, so a
    long step never blocks a question about health.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker")
        self._targets: dict[str, Any] = {}

    async def rendezvous(self) -> tuple[str, int]:
        """An address and a free port for the pool's process group."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    async def live(self) -> None:
        """Never returns: a call that ends says that the process has."""
        await asyncio.Event().wait()

    async def start(
        self,
        worker: Callable[..., Any],
        args: Sequence[Any],
        rank: int,
        world_size: int,
        address: tuple[str, int] | None,
    ) -> int:
        """Make the process group and the worker, and await its `open`, if any; returns the process id."""
        await self._in_thread(self._start, worker, args, rank, world_size, address)
        opening = getattr(self._targets[""], "open", None)
        if opening is not None:
            await opening()
        return os.getpid()

    def _start(
        self,
        worker: Callable[..., Any],
        args: Sequence[Any],
        rank: int,
        world_size: int,
        address: tuple[str, int] | None,
    ) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
        if address is not None:
            import torch

            os.environ.update(MASTER_ADDR=address[0], MASTER_PORT=str(address[1]))
            backend = "nccl" if torch.cuda.is_available() else "gloo"
            torch.distributed.init_process_group(backend, timeout=_GROUP_TIMEOUT)
        self._targets[""] = worker(*args)

    async def attach(self, name: str, plugin: Callable[..., Any], args: Sequence[Any]) -> None:
        """Make a plugin over the worker."""
        self._targets[name] = await self._in_thread(plugin, self._targets[""], *args)

    async def call(self, target: str, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method of the worker, or of a plugin."""
        function = getattr(self._targets[target], method)
        if asyncio.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        return await self._in_thread(function, *args, **kwargs)

    async def _in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))


class _Calls:
    """Method calls on some replicas of a pool, on the worker or on a plugin."""

    def __init__(self, replicas: Sequence[Any], target: str) -> None:
        self._replicas = replicas
        self._target = target

    def __getattr__(self, method: str) -> Callable[..., list["ray.ObjectRef[Any]"]]:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*args: Any, **kwargs: Any) -> list["ray.ObjectRef[Any]"]:
            return [replica.call.remote(self._target, method, args, kwargs) for replica in self._replicas]

        return call


class CollectiveHandle(_Calls):
    """Every replica of a pool; a method called on it runs on each and gives a list of object refs."""

    def __init__(self, name: str, start: "Callable[[int, Sequence[Any]], Any]", replicas: list[Any]) -> None:
        super().__init__(replicas, "")
        self.pool_name = name
        self.pids: list[int] = []
        self._replicas: list[Any] = replicas
        self._start = start
        self._plugins: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def dispatch_rank(self, rank: int) -> _Calls:
        """The same calls on one replica alone."""
        return _Calls([self._replicas[rank]], "")

    def plugin(self, name: str, *, rank: int | None = None) -> _Calls:
        """Calls on a plugin, of every replica or of one."""
        return _Calls(self._replicas if rank is None else [self._replicas[rank]], name)

    async def rendezvous(self) -> tuple[str, int]:
        """An address of rank 0 with a free port.

        Raises:
            PoolError: the replica died.
        """
        return (await self.gather([self._replicas[0].rendezvous.remote()]))[0]

    async def register_plugin(self, name: str, plugin: Callable[..., Any], *args: Any) -> None:
        """Attach `plugin(worker, *args)` to every replica under a name, and to those that replace them.

        Raises:
            PoolError: it could not be made.
        """
        self._plugins[name] = (plugin, args)
        await self.gather([replica.attach.remote(name, plugin, args) for replica in self._replicas])

    async def gather(
        self, refs: Sequence["ray.ObjectRef[Any]"], *, ranks: Sequence[int] | None = None
    ) -> list[Any]:
        """The results of a call, in the order of the replicas that were called.

        Args:
            refs: what the call gave.
            ranks: who was called, where it was not everybody.

        Raises:
            PoolError: a replica raised.
            ReplicaDiedError: one died.
        """
        numbered = zip(refs, ranks if ranks is not None else range(len(refs)), strict=True)
        return list(await asyncio.gather(*(self._result(ref, rank) for ref, rank in numbered)))

    async def _result(self, ref: "ray.ObjectRef[Any]", rank: int) -> Any:
        try:
            return await ref
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise PoolError(f"{self.pool_name} rank {rank}: {type(cause).__name__}: {cause}") from cause
        except RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise ReplicaDiedError(f"{self.pool_name} rank {rank} died: {reason}") from error

    async def death(self, rank: int) -> str:
        """Wait until a replica dies; returns the reason."""
        try:
            await self.gather([self._replicas[rank].live.remote()], ranks=[rank])
        except ReplicaDiedError as error:
            return str(error)
        raise AssertionError("a call without an end has ended")

    async def respawn(self, rank: int, *args: Any) -> None:
        """Make a new worker with its plugins in the place of a replica that died.

        Only for pools whose replicas form no process group.

        Args:
            rank: whose place.
            args: of the worker.

        Raises:
            PoolError: it could not be made.
        """
        ray.kill(self._replicas[rank], no_restart=True)
        replica, pid = await self._start(rank, args)
        calls = [replica.attach.remote(name, plugin, args) for name, (plugin, args) in self._plugins.items()]
        await self.gather(calls, ranks=[rank] * len(calls))
        self._replicas[rank], self.pids[rank] = replica, pid

    def kill(self) -> None:
        """End every replica at once."""
        for replica in self._replicas:
            ray.kill(replica, no_restart=True)


class spawn:  # noqa: N801 - reads as the verb that it is: spawn(Actor, placement)(config)
    """Start a worker class on every bundle of a placement.

    `spawn(WorkerClass, placement)(*args)` makes one Ray actor a bundle, sets `RANK` and `WORLD_SIZE`, makes
    the process group (NCCL where there is CUDA, else gloo) and then `WorkerClass(*args)` in each; a coroutine
    `open` of the worker is awaited.

    Args:
        worker: the class.
        placement: the bundles.
        name: of the pool, for errors.
        num_cpus: share of each bundle's CPUs.
        num_gpus: share of each bundle's GPUs; fractions let pools share a device.
        process_group: whether the replicas form one.
    """

    def __init__(
        self,
        worker: Callable[..., Any],
        placement: Placement,
        *,
        name: str,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        process_group: bool = True,
    ) -> None:
        self._worker = worker
        self._placement = placement
        self._name = name
        self._num_cpus = num_cpus
        self._num_gpus = num_gpus
        self._process_group = process_group

    async def __call__(self, *args: Any) -> CollectiveHandle:
        """Make the replicas and wait until each worker is ready.

        Raises:
            PoolError: one could not be made.
        """
        size = len(self._placement.plan.bundles)
        replicas = [self._make(bundle) for bundle in range(size)]
        handle = CollectiveHandle(self._name, self._one, replicas)
        address = await handle.rendezvous() if self._process_group else None
        handle.pids = await handle.gather(
            [
                replica.start.remote(self._worker, args, rank, size, address)
                for rank, replica in enumerate(replicas)
            ]
        )
        return handle

    async def _one(self, rank: int, args: Sequence[Any]) -> tuple[Any, int]:
        """A replica for a place that has come free, and its process id."""
        size = len(self._placement.plan.bundles)
        replica = self._make(rank)
        handle = CollectiveHandle(self._name, self._one, [replica])
        start = replica.start.remote(self._worker, args, rank, size, None)
        (pid,) = await handle.gather([start], ranks=[rank])
        return replica, pid

    def _make(self, bundle: int) -> Any:
        return (
            ray.remote(_Replica)
            .options(
                num_cpus=self._num_cpus,
                num_gpus=self._num_gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._placement.group, placement_group_bundle_index=bundle
                ),
                # Pools share few cores here; more than one thread in each is several times slower.
                runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}},
            )
            .remote()
        )
