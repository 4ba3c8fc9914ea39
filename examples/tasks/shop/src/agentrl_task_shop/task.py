"""The task: a need in words, and a shop to meet it in."""

import copy
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk import Generated, Session, Task, metric, tool
from agentrl_env_sdk.oracle import Plan, act
from agentrl_task_shop.catalogue import CATEGORIES, FACETS, Product, make_products
from agentrl_task_shop.index import PAGE_SIZE, make_index
from agentrl_task_shop.needs import LEVELS, Need, make_need

_SHOWN_CHARACTERS = 40
"""Of what an agent wrote."""
_NOTHING_OPEN = "no product is open; open one by its code"


class Shop(Task):
    """`shop`: the share of the need's requirements that the purchase meets.

    Args:
        difficulty: `easy` (one attribute, a colour, a price), `medium` (two attributes, colour, size and a
            price, with near misses) or `hard` (the cheapest or best-rated one, with what it must not be).

    Raises:
        ConfigError: there is no such difficulty, or SQLite has no full-text search.
    """

    optimum = 1.0

    def __init__(self, difficulty: str = "easy") -> None:
        if difficulty not in LEVELS:
            raise ConfigError(f"`difficulty` must be one of {sorted(LEVELS)}, got {difficulty!r}")
        self._difficulty = difficulty
        self._products = {product.code: product for product in make_products()}
        make_index()
        self.name = "shop" if difficulty == "easy" else f"shop-{difficulty}"
        self.max_turns = {"easy": 16, "medium": 24, "hard": 36}[difficulty]
        self.splits = {
            "train": Generated(lambda position: f"train/{position}", 1000),
            "test": Generated(lambda position: f"test/{position}", 200),
        }

    def setup(self, session: Session) -> str:
        """State the need."""
        need = make_need(self._difficulty, str(session.sample))
        session.state.update(need=need, product=None, options={}, search={"query": ""}, success=False)
        return f"{need.text} A purchase is final."

    @tool
    def search(
        self,
        session: Session,
        query: str,
        max_price: float | None = None,
        category: str | None = None,
        page: int = 1,
    ) -> str:
        """find products by words; those with more of the words come first

        Args:
            query: words, such as a noun, brand, material, feature; colours and sizes stand on the pages
            max_price: in dollars
            category: a noun such as mug, to see nothing else
            page: of the results, from 1
        """
        if category is not None:
            category = category.strip().lower().rstrip("s")
            if category not in CATEGORIES:
                shown = category[:_SHOWN_CHARACTERS]
                return f"there is no category {shown}; there are {', '.join(CATEGORIES)}"
        session.state["search"] = {
            "query": query,
            "max_price": max_price,
            "category": category,
            "page": page,
        }
        session.state.update(product=None, options={})
        return self._results(session)

    @tool
    def open(self, session: Session, product: str) -> str:
        """open a product's page

        Args:
            product: its code, from the results
        """
        code = product.strip().upper()
        if code not in self._products:
            return f"there is no product {code[:_SHOWN_CHARACTERS]}; each line of results begins with one"
        session.state.update(product=code, options={})
        return _page(self._products[code])

    @tool
    def choose(self, session: Session, option: str, value: str) -> str:
        """choose an option of the open product; the last choice counts

        Args:
            option: such as colour
            value: one of the option's values
        """
        product = self._product(session)
        if product is None:
            return _NOTHING_OPEN
        name, wanted = option.strip().lower(), value.strip().lower()
        name = "colour" if name == "color" else name
        values = dict(product.options).get(name)
        if values is None:
            offered = ", ".join(known for known, _ in product.options)
            return f"there is no option {name[:_SHOWN_CHARACTERS]}; there are {offered}"
        chosen = {each.lower(): each for each in values}.get(wanted)
        if chosen is None:
            return f"it does not come in {wanted[:_SHOWN_CHARACTERS]}; {name}: {', '.join(values)}"
        session.state["options"][name] = chosen
        return f"{name}: {chosen}"

    @tool
    def back(self, session: Session) -> str:
        """leave the product's page and see the last results again"""
        session.state.update(product=None, options={})
        return self._results(session)

    @tool
    def buy(self, session: Session) -> str:
        """buy the open product in the chosen options; this ends the errand"""
        product = self._product(session)
        if product is None:
            return _NOTHING_OPEN
        options: dict[str, str] = session.state["options"]
        for name, values in product.options:
            if name not in options:
                return f"choose a {name} first: {', '.join(values)}"
        need: Need = session.state["need"]
        share = need.share(product, options)
        session.state["success"] = share == 1.0
        session.finish(reward=share, score=share)
        return f"bought {product.title} ({', '.join(options.values())}) for ${product.price}"

    @metric
    def success(self, session: Session) -> float:
        """1 where everything was met."""
        return float(session.state["success"])

    def snapshot(self, session: Session) -> dict[str, Any]:
        """The need and what is open and chosen."""
        return copy.deepcopy(session.state)

    def oracle(self, session: Session) -> Plan:
        """Look for a product that it knows to fit, open it, choose, buy."""
        need: Need = session.state["need"]
        product = need.solutions()[0]
        words = " ".join((product.title, *product.facets))
        yield act("search", query=words, category=product.category, max_price=product.price)
        yield act("open", product=product.code)
        for name, value in need.options(product).items():
            yield act("choose", option=name, value=value)
        yield act("buy")

    def _product(self, session: Session) -> Product | None:
        code: str | None = session.state["product"]
        return None if code is None else self._products[code]

    def _results(self, session: Session) -> str:
        asked: dict[str, Any] = session.state["search"]
        found, total = make_index().search(**asked)
        if not total:
            return "nothing found; use other words, or leave out the category or the price"
        num_pages = -(-total // PAGE_SIZE)
        if not found:
            return f"there are only {num_pages} pages"
        lines = [f"{each.code} {each.title}, ${each.price}, {each.stars}" for each in found]
        return "\n".join([f"{total} found, page {max(asked.get('page', 1), 1)} of {num_pages}", *lines])


def _page(product: Product) -> str:
    lines = [f"{product.code} {product.title}", f"${product.price}, {product.stars}"]
    lines += [f"{facet}: {value}" for facet, value in zip(FACETS, product.facets, strict=True)]
    lines += [f"{name} (choose): {', '.join(values)}" for name, values in product.options]
    return "\n".join(lines)
