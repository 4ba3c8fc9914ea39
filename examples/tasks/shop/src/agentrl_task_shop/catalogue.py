"""300 invented products in twelve categories, made from a seed."""

import functools
import random
from dataclasses import dataclass

_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_PER_CATEGORY = 25
_NUM_COLOURS, _NUM_SIZES = 3, 2
"""How many of each a product comes in."""

BRANDS = ("Norvik", "Talden", "Quorra", "Bexley", "Mirano", "Oskell", "Pavona", "Zendry")
"""Makers, none of which exists as far as we know."""
COLOURS = ("black", "white", "red", "blue", "green", "grey", "yellow")
"""What products come in."""
FACETS = ("feature", "material", "style")
"""What is said of a product, in the order in which it stands before the noun."""

_KINDS: dict[str, tuple[str, str, str, str]] = {
    "backpack": ("waterproof padded foldable", "canvas nylon leather", "hiking school travel", "15l 25l 35l"),
    "blanket": ("weighted washable reversible", "wool cotton fleece", "picnic sofa baby", "90cm 130cm 180cm"),
    "bottle": (
        "leakproof insulated collapsible",
        "steel glass plastic",
        "sports baby travel",
        "300ml 500ml 750ml",
    ),
    "chair": ("foldable stackable padded", "oak steel bamboo", "garden office dining", "low standard high"),
    "jacket": ("hooded windproof quilted", "wool fleece denim", "running city winter", "small medium large"),
    "kettle": ("cordless whistling quiet", "steel copper glass", "gooseneck camping retro", "1l 1.5l 2l"),
    "lamp": ("dimmable foldable wireless", "brass oak glass", "desk bedside reading", "30cm 45cm 60cm"),
    "mug": (
        "insulated stackable handmade",
        "ceramic enamel steel",
        "coffee camping office",
        "250ml 350ml 500ml",
    ),
    "notebook": ("lined dotted squared", "linen leather cardboard", "pocket travel school", "A4 A5 A6"),
    "rug": (
        "washable handwoven reversible",
        "wool jute cotton",
        "hallway bedroom outdoor",
        "120cm 160cm 200cm",
    ),
    "tent": (
        "waterproof ventilated lightweight",
        "polyester cotton nylon",
        "tunnel dome beach",
        "2-person 3-person 4-person",
    ),
    "umbrella": (
        "windproof automatic compact",
        "wooden carbon steel",
        "golf travel city",
        "90cm 105cm 120cm",
    ),
}
"""Features, materials, styles and sizes of each category."""
CATEGORIES = tuple(_KINDS)
"""What the shop sells."""


@dataclass(frozen=True, slots=True)
class Product:
    """Something for sale."""

    code: str
    """What it is opened by."""
    category: str
    """One of `CATEGORIES`."""
    brand: str
    """One of `BRANDS`."""
    facets: tuple[str, ...]
    """Its value of each of `FACETS`."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """What is to be chosen (colour, size), and from which values."""
    price: int
    """In whole dollars."""
    tenths: int
    """Stars times ten, so that comparing them is exact."""

    @property
    def title(self) -> str:
        """What stands in a list of results; feature and material stand on the page only."""
        return f"{self.brand} {self.facets[2]} {self.category}"

    @property
    def stars(self) -> str:
        """The rating as it is shown, from 1.0 to 5.0."""
        return f"{self.tenths / 10:.1f} stars"

    def offers(self, option: str, value: str) -> bool:
        """Whether it comes in a value of an option."""
        return value in dict(self.options).get(option, ())


def facets_of(category: str) -> tuple[tuple[str, ...], ...]:
    """The values that each of `FACETS` can have in a category."""
    return tuple(tuple(words.split()) for words in _KINDS[category][: len(FACETS)])


@functools.cache
def make_products(seed: int = 0) -> tuple[Product, ...]:
    """All products; the same seed gives the same ones."""
    chance = random.Random(f"shop/{seed}")
    codes: dict[str, None] = {}
    while len(codes) < _PER_CATEGORY * len(_KINDS):
        codes[chance.choice(_LETTERS) + "".join(chance.choices(_LETTERS + "23456789", k=4))] = None
    left = iter(codes)
    return tuple(_make(chance, next(left), category) for category in _KINDS for _ in range(_PER_CATEGORY))


@functools.cache
def products_of(category: str) -> tuple[Product, ...]:
    """What the shop has of a category."""
    return tuple(product for product in make_products() if product.category == category)


def _make(chance: random.Random, code: str, category: str) -> Product:
    sizes = _KINDS[category][-1].split()
    options = (
        ("colour", _some(chance, COLOURS, _NUM_COLOURS)),
        ("size", _some(chance, sizes, _NUM_SIZES)),
    )
    return Product(
        code=code,
        category=category,
        brand=chance.choice(BRANDS),
        facets=tuple(map(chance.choice, facets_of(category))),
        options=options,
        price=chance.randint(10, 120),
        tenths=chance.randint(25, 50),
    )


def _some(chance: random.Random, values: "tuple[str, ...] | list[str]", count: int) -> tuple[str, ...]:
    """Some of the values, in their order."""
    chosen = chance.sample(values, count)
    return tuple(value for value in values if value in chosen)
