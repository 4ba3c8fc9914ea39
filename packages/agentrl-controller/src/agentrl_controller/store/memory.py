"""Keeps nothing beyond this process."""

from agentrl_controller.store.base import Record


class MemoryStore:
    """For those who don't mind that sessions end with the controller, unless workers report them."""

    is_lasting = False
    replica = ""

    async def open(self) -> dict[str, dict[str, Record]]:
        """Nothing was kept."""
        return {}

    def put(self, kind: str, key: str, record: Record) -> None:
        """Nothing to do."""

    def drop(self, kind: str, key: str) -> None:
        """Nothing to do."""

    async def flush(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""
