"""How much memory a run takes, all its processes together."""

import asyncio
import contextlib

import psutil

_PERIOD_S = 5.0


class PeakMemory:
    """Samples the proportional set size of this process and its descendants; shared pages count once."""

    def __init__(self) -> None:
        self.peak_mb = 0.0

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            self.peak_mb = max(self.peak_mb, await asyncio.to_thread(_used_mb))
            await asyncio.sleep(_PERIOD_S)


def _used_mb() -> float:
    total = 0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
    return total / 2**20
