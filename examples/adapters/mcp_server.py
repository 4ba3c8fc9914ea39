"""An MCP server with the stock of a small store, made with the real `mcp` package.

python mcp_server.py          over standard input and output
python mcp_server.py PORT     over HTTP at http://127.0.0.1:PORT/mcp
"""

import random
import sys

from mcp.server.mcpserver import MCPServer

ITEMS = ("nails", "screws", "hinges", "hooks", "bolts", "washers")
SHELVES = tuple("ABCDEFGH")


def stock() -> dict[str, dict[str, int]]:
    """How many of each item lie on each shelf; some shelves lack some items."""
    chance = random.Random(20)
    return {
        shelf: {item: chance.randint(100, 999) for item in ITEMS if chance.random() < 0.7}
        for shelf in SHELVES
    }


def server() -> MCPServer:
    """The server with its tools."""
    made = MCPServer("store", log_level="ERROR")
    shelves = stock()

    @made.tool()
    def shelves_with(item: str) -> list[str]:
        """Names of the shelves that hold an item."""
        return [name for name, found in shelves.items() if item in found]

    @made.tool()
    def count(shelf: str, item: str) -> int:
        """How many of an item lie on a shelf."""
        return shelves.get(shelf, {}).get(item, 0)

    return made


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server().run("streamable-http", port=int(sys.argv[1]))
    else:
        server().run("stdio")
