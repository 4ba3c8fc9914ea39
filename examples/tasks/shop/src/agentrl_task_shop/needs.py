"""Needs: requirements that some products meet and others nearly do, told in words."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentrl_task_shop.catalogue import BRANDS, FACETS, Product, facets_of, make_products, products_of
from agentrl_task_shop.index import make_index

_NEAR_MISSES = {"easy": 0, "medium": 2, "hard": 3}
_MOST_FITTING = {"easy": 6, "medium": 3, "hard": 6}
_FEWEST_FITTING = {"easy": 1, "medium": 1, "hard": 2}
"""On `hard` there is something to compare."""
LEVELS = tuple(_NEAR_MISSES)
"""The difficulties."""

Options = Mapping[str, str]
"""What has been chosen, by option."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that a purchase meets or does not."""

    kind: str
    """A key of `_CHECKS`."""
    value: str | int
    """What it asks for; prices in dollars, ratings in tenths of stars."""
    name: str = ""
    """The facet or option that is meant."""

    def is_met(self, product: Product, options: Options) -> bool:
        """Whether a product in the chosen options meets it."""
        return _CHECKS[self.kind](self, product, options)


_CHECKS: Mapping[str, Callable[[Requirement, Product, Options], bool]] = {
    "category": lambda asked, product, _: product.category == asked.value,
    "is": lambda asked, product, _: product.facets[FACETS.index(asked.name)] == asked.value,
    "not": lambda asked, product, _: product.facets[FACETS.index(asked.name)] != asked.value,
    "not brand": lambda asked, product, _: product.brand != asked.value,
    "option": lambda asked, _, options: options.get(asked.name) == asked.value,
    "at most": lambda asked, product, _: product.price <= int(asked.value),
    "rated": lambda asked, product, _: product.tenths >= int(asked.value),
}


@dataclass(frozen=True, slots=True)
class Need:
    """What is to be bought."""

    text: str
    """In words."""
    requirements: tuple[Requirement, ...]
    """Each counts the same; the first is the category."""
    first: str = ""
    """`cheapest` or `best-rated` of what meets the rest, which counts as one requirement more; or nothing."""
    winners: frozenset[str] = frozenset()
    """Codes of the products that are first."""

    def share(self, product: Product, options: Options) -> float:
        """The share of the requirements that a purchase meets; nothing for another category."""
        met = [asked.is_met(product, options) for asked in self.requirements]
        if not met[0]:
            return 0.0
        if self.first:
            met.append(product.code in self.winners)
        return sum(met) / len(met)

    def missed(self, product: Product) -> int:
        """Requirements that a product fails in its best options, being first apart."""
        options = self.options(product)
        return sum(not asked.is_met(product, options) for asked in self.requirements)

    def options(self, product: Product) -> dict[str, str]:
        """The options to choose of a product: what is asked for where it comes in that, else its first."""
        asked = {each.name: str(each.value) for each in self.requirements if each.kind == "option"}
        return {
            name: asked[name] if product.offers(name, asked.get(name, "")) else values[0]
            for name, values in product.options
        }

    def solutions(self) -> list[Product]:
        """Products that meet everything."""
        fitting = [product for product in self._shelf if not self.missed(product)]
        return [product for product in fitting if not self.first or product.code in self.winners]

    def excludes(self, asked: Requirement) -> bool:
        """Whether some product of the category does not meet a requirement."""
        return not all(asked.is_met(product, self.options(product)) for product in self._shelf)

    @property
    def _shelf(self) -> tuple[Product, ...]:
        return products_of(str(self.requirements[0].value))


def make_need(difficulty: str, seed: str) -> Need:
    """A need that can be met; the same seed gives the same one.

    Args:
        difficulty: one of `LEVELS`.
        seed: of its chance.
    """
    chance = random.Random(f"shop/{difficulty}/{seed}")
    while True:
        target = chance.choice(make_products())
        need = _DRAFTS[difficulty](chance, target)
        if _is_worth(need, difficulty):
            return need


def _is_worth(need: Need, difficulty: str) -> bool:
    """Whether neither too much fits nor too little nearly does."""
    shelf = products_of(str(need.requirements[0].value))
    fitting = [product for product in shelf if not need.missed(product)]
    near = [product for product in shelf if need.missed(product) == 1]
    if not _FEWEST_FITTING[difficulty] <= len(fitting) <= _MOST_FITTING[difficulty]:
        return False
    if len(near) < _NEAR_MISSES[difficulty] or not all(map(need.excludes, need.requirements[1:])):
        return False
    if difficulty == "easy":
        return True
    hits, _ = make_index().search(need.text)
    if not need.missed(hits[0]):  # Nothing would have to be compared.
        return False
    if not need.first:
        return True
    # One that looks better must be there, or the other requirements would not need to be read.
    return len(need.winners) == 1 and _first(need.first, [*near, *fitting]).isdisjoint(need.winners)


def _easy(chance: random.Random, target: Product) -> Need:
    facet = chance.choice(FACETS)
    asked = [_category(target), _is(target, facet), _option(target, "colour", chance), _price(target, chance)]
    return Need(_text(asked), tuple(asked))


def _medium(chance: random.Random, target: Product) -> Need:
    facets = sorted(chance.sample(FACETS, 2), key=FACETS.index)
    asked = [_category(target), *(_is(target, facet) for facet in facets)]
    asked += [_option(target, name, chance) for name in ("colour", "size")]
    asked.append(_price(target, chance))
    return Need(_text(asked), tuple(asked))


def _hard(chance: random.Random, target: Product) -> Need:
    wanted, unwanted = chance.sample(FACETS, 2)
    values = facets_of(target.category)[FACETS.index(unwanted)]
    others = [value for value in values if value != target.facets[FACETS.index(unwanted)]]
    brands = [brand for brand in BRANDS if brand != target.brand]
    asked = [
        _category(target),
        _is(target, wanted),
        Requirement("not", chance.choice(others), unwanted),
        Requirement("not brand", chance.choice(brands)),
        _option(target, "colour", chance),
    ]
    first = chance.choice(["cheapest", "best-rated"])
    if first == "cheapest":
        asked.append(Requirement("rated", max(10, target.tenths - chance.randint(0, 6))))
    else:
        asked.append(_price(target, chance))
    bare = Need("", tuple(asked))
    winners = _first(first, bare.solutions())
    return Need(_text(asked, first), tuple(asked), first, winners)


_DRAFTS = {"easy": _easy, "medium": _medium, "hard": _hard}


def _category(target: Product) -> Requirement:
    return Requirement("category", target.category)


def _is(target: Product, facet: str) -> Requirement:
    return Requirement("is", target.facets[FACETS.index(facet)], facet)


def _option(target: Product, name: str, chance: random.Random) -> Requirement:
    return Requirement("option", chance.choice(dict(target.options)[name]), name)


def _price(target: Product, chance: random.Random) -> Requirement:
    return Requirement("at most", target.price + chance.randint(0, 15))


def _first(which: str, products: Iterable[Product]) -> frozenset[str]:
    """Codes of the cheapest or best-rated of some products; several where they are equal."""
    worth = {each.code: -each.price if which == "cheapest" else each.tenths for each in products}
    return frozenset(code for code, value in worth.items() if value == max(worth.values()))


def _text(asked: Sequence[Requirement], first: str = "") -> str:
    """The requirements in words."""
    category = str(asked[0].value)
    noun = " ".join([*(str(each.value) for each in asked if each.kind == "is"), category])
    said = [f"Buy the {first} {noun}" if first else f"Buy {_one(noun)}"]
    unwanted = []
    for each in asked:
        if each.kind == "rated":
            said.append(f"rated {int(each.value) / 10:.1f} stars or better")
        elif each.kind == "not":
            unwanted.append(_one(f"{each.value} {category}"))
        elif phrase := _PHRASES.get(each.name or each.kind):
            (unwanted if each.kind == "not brand" else said).append(phrase.format(each.value))
    more = f" It must be neither {' nor '.join(unwanted)}." if unwanted else ""
    return f"{' '.join(said)}.{more}"


_PHRASES = {
    "colour": "in {}",
    "size": "of size {}",
    "at most": "for at most ${}",
    "not brand": "by {}",
}


def _one(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
