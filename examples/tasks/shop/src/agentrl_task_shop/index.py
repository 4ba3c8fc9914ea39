"""Full-text search over the products: one SQLite database in memory that all episodes read."""

import functools
import re
import sqlite3
import threading
from collections.abc import Sequence

from agentrl_core import ConfigError
from agentrl_task_shop.catalogue import Product, make_products

PAGE_SIZE = 10
"""Results on a page."""

_MAX_WORDS = 24
"""Of a query; FTS5 refuses expressions that are too deep."""
_MAX_LETTERS = 2_000
_MAX_PAGE = 1_000
_TITLE_WEIGHT = 4.0
"""How much more a word in the title counts than one on the page."""


class Index:
    """Products by words, ranked by BM25 as SQLite's FTS5 computes it.

    Titles and facets are searched; colours and sizes stand on the pages only.

    Args:
        products: what can be found.

    Raises:
        ConfigError: this Python's SQLite has no FTS5.
    """

    def __init__(self, products: Sequence[Product]) -> None:
        self._products = products
        # Sessions run on threads of their own; not every build of SQLite lets them share a connection.
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._connection.execute(
                "CREATE VIRTUAL TABLE pages USING fts5"
                "(title, body, category UNINDEXED, price UNINDEXED, tokenize = 'porter unicode61')"
            )
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise ConfigError(
                f"the shop needs SQLite with FTS5, got {sqlite3.sqlite_version} ({error}); use another Python"
            ) from error
        rows = [
            (number, product.title, " ".join(product.facets), product.category, product.price)
            for number, product in enumerate(products)
        ]
        self._connection.executemany(
            "INSERT INTO pages (rowid, title, body, category, price) VALUES (?, ?, ?, ?, ?)", rows
        )
        self._connection.commit()

    def search(
        self, query: str, *, max_price: float | None = None, category: str | None = None, page: int = 1
    ) -> tuple[list[Product], int]:
        """A page of the products in which any word of a query stands, best first, and how many there are.

        Args:
            query: words; what else stands between them does not matter. Without a word, everything is found.
            max_price: in dollars.
            category: where to look; everywhere where it is absent.
            page: counted from 1.
        """
        conditions, values = ["1"], list[object]()
        words = re.findall(r"\w+", query[:_MAX_LETTERS])[:_MAX_WORDS]
        if words:
            # Quoted, each is a string of FTS5's grammar, whatever it would mean there otherwise.
            conditions.append("pages MATCH ?")
            values.append(" OR ".join(f'"{word}"' for word in words))
        if max_price is not None:
            conditions.append("price <= ?")
            values.append(float(max_price))
        if category is not None:
            conditions.append("category = ?")
            values.append(category)
        where = " AND ".join(conditions)
        order = f"bm25(pages, {_TITLE_WEIGHT}), rowid" if words else "rowid"
        start = (min(max(page, 1), _MAX_PAGE) - 1) * PAGE_SIZE
        with self._lock:
            ((total,),) = self._connection.execute(f"SELECT count(*) FROM pages WHERE {where}", values)
            found = self._connection.execute(
                f"SELECT rowid FROM pages WHERE {where} ORDER BY {order} LIMIT {PAGE_SIZE} OFFSET {start}",
                values,
            ).fetchall()
        return [self._products[number] for (number,) in found], total


@functools.cache
def make_index() -> Index:
    """The index of all products; made once in a process."""
    return Index(make_products())
