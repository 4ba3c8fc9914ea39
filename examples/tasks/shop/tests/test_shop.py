import sqlite3
import threading

import pytest
from agentrl_task_shop import Product, Shop, make_index, make_need, make_products
from agentrl_task_shop.catalogue import CATEGORIES, FACETS, facets_of, products_of
from agentrl_task_shop.index import PAGE_SIZE, Index
from agentrl_task_shop.needs import LEVELS, Need, Requirement
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import ConfigError
from agentrl_env_sdk.testing import DoNothingAgent, OracleAgent, RandomAgent, act

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
"""Half characters and control characters among it."""


def everything(need: Need) -> set[str]:
    """Codes of what meets a need, found anew from the requirements' meaning."""
    found = []
    for product in make_products():
        said = {"category": product.category, **dict(zip(FACETS, product.facets, strict=True))}
        offered = dict(product.options)
        if all(
            {
                "category": said["category"] == each.value,
                "is": said.get(each.name) == each.value,
                "not": said.get(each.name) != each.value,
                "not brand": product.brand != each.value,
                "option": each.value in offered.get(each.name, ()),
                "at most": each.kind == "at most" and product.price <= each.value,
                "rated": each.kind == "rated" and product.tenths >= each.value,
            }[each.kind]
            for each in need.requirements
        ):
            found.append(product)
    if need.first == "cheapest":
        found = [each for each in found if each.price == min(other.price for other in found)]
    if need.first == "best-rated":
        found = [each for each in found if each.tenths == max(other.tenths for other in found)]
    return {each.code for each in found}


@pytest.mark.parametrize("difficulty", LEVELS)
def test_needs_can_be_met_and_nearly_met(difficulty):
    for name in [f"train/{number}" for number in range(60)] + [f"test/{number}" for number in range(60)]:
        need = make_need(difficulty, name)
        solutions = need.solutions()
        assert {each.code for each in solutions} == everything(need) != set()
        assert all(need.share(each, need.options(each)) == 1.0 for each in solutions)
        near = [each for each in make_products() if need.missed(each) == 1]
        assert len(near) >= {"easy": 0, "medium": 2, "hard": 3}[difficulty]
        assert all(need.share(each, need.options(each)) < 1.0 for each in near)
        assert not any(each.code in need.text for each in make_products())


def test_what_looks_first_misses_something():
    for number in range(40):
        need = make_need("hard", f"test/{number}")
        (winner,) = need.solutions()
        near = [each for each in products_of(winner.category) if need.missed(each) == 1]
        if need.first == "cheapest":
            assert min(each.price for each in near) < winner.price
        else:
            assert max(each.tenths for each in near) > winner.tenths


def test_needs_differ_and_stay_the_same():
    assert len({make_need("hard", f"test/{number}").text for number in range(100)}) == 100
    assert {make_need("hard", f"test/{number}").first for number in range(20)} == {"cheapest", "best-rated"}
    assert make_need("medium", "5") == make_need("medium", "5")


def test_the_catalogue_is_as_described():
    products = make_products()
    assert len(products) == len({each.code for each in products}) == 300
    for product in products:
        allowed = facets_of(product.category)
        assert all(value in values for value, values in zip(product.facets, allowed, strict=True))
        assert (10 <= product.price <= 120, 25 <= product.tenths <= 50) == (True, True)


@pytest.mark.parametrize("difficulty", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_best_play_wins_everywhere(play, difficulty, split):
    task = Shop(difficulty)
    start = 0 if split == "train" else 1000
    for index in range(start, start + 15):
        episode = play(task, index=index)
        episode.play(OracleAgent(task.oracle))
        assert (episode.metrics["score"], episode.reward, episode.metrics["success"]) == (1.0, 1.0, 1.0)
        code = episode.session.state["product"]
        assert code in episode.observations[1].text  # It stood on the first page of the results.


def buy_first_hit(session):
    """What one can do without reading pages: the first result for the need's words, in the asked options."""
    text = session.state["need"].text
    seen = yield act("search", query=text)
    page = yield act("open", product=seen.text.splitlines()[1].split()[0])
    for line in page.text.splitlines():
        option, found, values = line.partition(" (choose): ")
        if found:
            fitting = [value for value in values.split(", ") if value in text.rstrip(".").split()]
            yield act("choose", option=option, value=(fitting or values.split(", "))[0])
    yield act("buy")


def read_pages(session):
    """What one can do from what is shown: read page after page until something fits, or all to compare."""
    need = session.state["need"]
    category = need.requirements[0].value
    words = " ".join([str(each.value) for each in need.requirements if each.kind == "is"])
    lines: list[str] = []
    for page in (1, 2, 3):
        seen = yield act("search", query=f"{words} {category}", category=category, page=page)
        lines += seen.text.splitlines()[1:]
        if not need.first:
            break
    fitting = []
    for line in lines:
        page = yield act("open", product=line.split()[0])
        product = as_product(page.text)
        fitting += [] if need.missed(product) else [product]
        if fitting and not need.first:
            break
    best = min(fitting, key=lambda each: each.price if need.first == "cheapest" else -each.tenths)
    yield act("open", product=best.code)
    for name, value in need.options(best).items():
        yield act("choose", option=name, value=value)
    yield act("buy")


def as_product(page: str) -> Product:
    """A product as its page tells of it."""
    title, worth, *rows = page.splitlines()
    code, brand, _, category = title.split()
    said = dict(row.split(": ") for row in rows)
    options = tuple(
        (name.removesuffix(" (choose)"), tuple(values.split(", ")))
        for name, values in said.items()
        if name.endswith("(choose)")
    )
    price, stars = worth.removeprefix("$").removesuffix(" stars").split(", ")
    facets = tuple(said[name] for name in FACETS)
    return Product(code, category, brand, facets, options, int(price), round(float(stars) * 10))


@pytest.mark.parametrize("difficulty", LEVELS)
def test_reading_what_is_shown_is_enough(play, difficulty):
    task = Shop(difficulty)
    for index in range(1000, 1015):
        episode = play(task, index=index)
        episode.play(OracleAgent(read_pages))
        assert episode.metrics["success"] == 1.0, episode.opening.text


@pytest.mark.parametrize("difficulty", LEVELS)
def test_the_first_hit_is_not_enough(play, difficulty):
    task, scores = Shop(difficulty), []
    for index in range(1000, 1030):
        episode = play(task, index=index)
        episode.play(OracleAgent(buy_first_hit))
        scores.append((episode.reward, episode.metrics["success"]))
    rewards, successes = zip(*scores, strict=True)
    assert sum(successes) < 0.6 * len(scores)
    assert sum(successes) < sum(rewards) < 0.9 * len(scores)


@pytest.mark.parametrize("difficulty", LEVELS)
def test_nothing_comes_of_nothing_and_little_of_chance(play, difficulty):
    task, by_chance = Shop(difficulty), []
    for index in range(1000, 1020):
        idle, lucky = play(task, index=index), play(task, index=index)
        idle.play(DoNothingAgent())
        lucky.play(RandomAgent(index))
        assert (idle.reward, idle.metrics["success"]) == (0.0, 0.0)
        by_chance.append(lucky.reward)
    assert sum(by_chance) / len(by_chance) < 0.3


def test_each_requirement_is_worth_the_same():
    product = make_products()[0]
    wanted = {name: values[0] for name, values in product.options}
    need = Need(
        "",
        (
            Requirement("category", product.category),
            Requirement("is", product.facets[0], "feature"),
            Requirement("not", product.facets[1], "material"),
            Requirement("option", wanted["colour"], "colour"),
            Requirement("at most", product.price - 1),
        ),
        first="cheapest",
        winners=frozenset({product.code}),
    )
    # Met: category, feature, colour, being the cheapest; missed: the material and the price.
    assert need.share(product, wanted) == pytest.approx(4 / 6)
    assert need.share(product, wanted | {"colour": "pink"}) == pytest.approx(3 / 6)
    other = next(each for each in make_products() if each.category != product.category)
    assert need.share(other, wanted) == 0.0


def test_a_part_of_the_need_is_a_part_of_the_reward(play):
    need = make_need("easy", "train/0")
    product = need.solutions()[0]
    options = need.options(product)
    options["colour"] = next(each for each in dict(product.options)["colour"] if each != options["colour"])
    episode = play(Shop(), index=0)
    episode.call("open", product=product.code)
    for name, value in options.items():
        episode.call("choose", option=name, value=value)
    said = episode.call("buy")
    assert said.text.startswith(f"bought {product.title}")
    assert (episode.reward, episode.score, episode.metrics["success"]) == (0.75, 0.75, 0.0)


def test_what_cannot_be_done_is_told(play):
    product = make_products()[0]
    colours = ", ".join(dict(product.options)["colour"])
    episode = play(Shop(), index=0)
    assert episode.call("buy").text == "no product is open; open one by its code"
    assert episode.call("choose", option="colour", value="red").text.startswith("no product is open")
    assert episode.call("open", product="nothing").text.startswith("there is no product NOTHING;")
    assert episode.call("search", query="x", category="boats").text.startswith("there is no category boat;")
    assert episode.call("search", query="zebra").text.startswith("nothing found; use other words")
    assert episode.call("search", query="mug", category="mug", page=9).text == "there are only 3 pages"
    assert product.title in episode.call("open", product=f" {product.code.lower()} ").text
    assert episode.call("choose", option="shape", value="x").text == (
        "there is no option shape; there are colour, size"
    )
    assert episode.call("choose", option="color", value="pink").text == (
        f"it does not come in pink; colour: {colours}"
    )
    assert not episode.finished


def test_options_must_be_chosen_and_belong_to_one_product(play):
    first, second = make_products()[:2]
    episode = play(Shop(), index=0)
    episode.call("search", query="", category=first.category)
    episode.call("open", product=first.code)
    episode.call("choose", option="Colour", value=dict(first.options)["colour"][0].upper())
    assert episode.call("buy").text.startswith("choose a size first: ")
    assert episode.call("back").text.startswith("25 found, page 1 of 3")
    episode.call("open", product=second.code)
    assert episode.call("buy").text.startswith("choose a colour first: ")


def test_a_fork_goes_on_apart(play):
    task = Shop()
    episode = play(task, index=3)
    product = make_need("easy", "train/3").solutions()[0]
    episode.call("open", product=product.code)
    twin = episode.fork()
    for name, value in make_need("easy", "train/3").options(product).items():
        twin.call("choose", option=name, value=value)
    twin.call("buy")
    assert (twin.reward, twin.finished) == (1.0, True)
    assert (episode.reward, episode.finished, episode.session.state["options"]) == (0.0, False, {})


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_product_can_be_found(category):
    pages = [make_index().search("", category=category, page=page)[0] for page in (1, 2, 3, 4)]
    assert [len(page) for page in pages] == [PAGE_SIZE, PAGE_SIZE, 5, 0]
    assert {each for page in pages for each in page} == set(products_of(category))
    for product in products_of(category):
        words = " ".join((product.title, *product.facets))
        assert product in make_index().search(words)[0]


def test_more_of_the_words_come_first():
    found, total = make_index().search("canvas travel backpack", max_price=60)
    assert total > PAGE_SIZE
    assert all(each.price <= 60 for each in found)
    hits = [len({"canvas", "travel", "backpack"} & {*each.facets, each.category}) for each in found]
    assert hits[0] == 3
    assert make_index().search("Backpacks")[0][0].category == "backpack"  # The stem counts.


@given(ANY_TEXT, st.floats() | st.none(), st.sampled_from((*CATEGORIES, None)), st.integers())
def test_whatever_is_searched_is_no_error(query, max_price, category, page):
    found, total = make_index().search(query, max_price=max_price, category=category, page=page)
    assert len(found) <= min(PAGE_SIZE, total) <= 300
    assert all(category in (None, each.category) for each in found)


@pytest.mark.parametrize(
    "query", ['"', "a AND", "NOT", "title:*", "NEAR(a b", "_", "a" * 10**6, "x " * 10**5]
)
def test_the_grammar_of_the_search_stays_outside(query):
    assert make_index().search(query)[1] >= 0


def test_many_threads_read_one_index():
    expected = {each: make_index().search(each) for each in CATEGORIES}
    seen, wrong = threading.Barrier(12), []

    def read(word: str) -> None:
        seen.wait(timeout=10)
        wrong.extend(word for _ in range(30) if make_index().search(word) != expected[word])

    threads = [threading.Thread(target=read, args=(word,)) for word in CATEGORIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert wrong == []


def test_sqlite_without_full_text_search_is_named(monkeypatch):
    def connect(*args, **options):
        made = original(*args, **options)
        made.set_authorizer(
            lambda action, *_: (
                sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_CREATE_VTABLE else sqlite3.SQLITE_OK
            )
        )
        return made

    original = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(ConfigError, match="needs SQLite with FTS5"):
        Index(make_products()[:1])


def test_an_unknown_difficulty_is_named():
    with pytest.raises(ConfigError, match="got 'tiny'"):
        Shop("tiny")


@pytest.mark.parametrize("difficulty", ["medium", "hard"])
def test_the_task_keeps_the_rules(validate_task, difficulty):
    report = validate_task(Shop(difficulty))
    assert report.ok, report.table()
