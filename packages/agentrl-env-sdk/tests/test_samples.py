import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import ConfigError
from agentrl_env_sdk import Generated, JsonLines, Session, Task
from agentrl_env_sdk.samples import Samples
from agentrl_env_sdk.worker import Runner


def a_task(**splits):
    task = Task()
    task.splits = splits
    return task


def test_indices_count_over_the_splits_in_order():
    samples = Samples(a_task(train=2, test=["a", "b", "c"]))
    assert samples.splits == {"train": [0, 1], "test": [2, 3, 4]}
    assert samples.find(1) == ("train", 1)
    assert samples.find(3) == ("test", "b")
    assert samples.find(5) is samples.find(-1) is samples.find("a") is None


def test_samples_may_have_names():
    samples = Samples(a_task(train={"first": 1}, test={"second": 2, "third": 3}))
    assert samples.splits == {"train": ["first"], "test": ["second", "third"]}
    assert samples.find("third") == ("test", 3)
    assert samples.find("fourth") is samples.find(0) is None


async def test_a_named_sample_is_played():
    class Named(Task):
        splits = {"test": {"moon": "cheese"}}

        def setup(self, session: Session) -> str:
            return f"{session.index} {session.sample} {session.split}"

    runner = Runner(Named())
    _, opening = await runner.start("moon")
    assert opening.messages[0].text == "moon cheese test"
    await runner.cancel_all()


@pytest.mark.parametrize(
    ("splits", "name"),
    [({"train": {"x": 1}, "test": {"x": 2}}, "x"), ({"train": 3, "test": {2: "two"}}, "2")],
)
def test_a_name_that_comes_twice_is_refused(splits, name):
    with pytest.raises(ConfigError, match=f"two samples called `{name}`"):
        Samples(a_task(**splits))


def test_samples_may_have_numbers_of_their_own():
    samples = Samples(a_task(test={200: "a", -1: "b", "door": "c"}))
    assert samples.splits == {"test": [200, -1, "door"]}
    assert [samples.find(index) for index in (200, -1, "door", 0)] == [
        ("test", "a"),
        ("test", "b"),
        ("test", "c"),
        None,
    ]


@pytest.mark.parametrize("given", [[1, 2], 5, None])
def test_splits_that_are_no_mapping_are_refused(given):
    task = Task()
    task.splits = given
    with pytest.raises(ConfigError, match=r"`splits` of `task` must be samples by split, such as .*, got"):
        Samples(task)


def test_generated_samples_with_arguments_in_the_wrong_order_are_refused():
    with pytest.raises(ConfigError, match="`function` of generated samples must be callable, got 5"):
        Generated(5, str)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"`count` .* must be a whole number >= 0, got 1\.5"):
        Generated(str, 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [-1, True, "text", 1.5, {1.5: "number"}])
def test_what_is_no_split_is_refused(given):
    with pytest.raises(ConfigError, match="count, a sequence or a mapping"):
        Samples(a_task(train=given))


@given(st.lists(st.one_of(st.text(), st.integers(), st.dictionaries(st.text(), st.text()))))
def test_lines_of_a_file_are_read_where_they_are(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text(
        "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8", "surrogatepass"
    )
    lines = JsonLines(path)
    assert list(lines) == rows
    assert lines[1:] == rows[1:]
    if rows:
        assert lines[-1] == rows[-1]
    with pytest.raises(IndexError):
        lines[len(rows)]


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"cannot be read from `nowhere\.jsonl`"):
        JsonLines("nowhere.jsonl")


def test_generated_samples_are_made_when_they_are_asked_for():
    made = []
    squares = Generated(lambda position: made.append(position) or position**2, 10**9)
    assert (len(squares), squares[999_999_999], squares[-1]) == (10**9, (10**9 - 1) ** 2, (10**9 - 1) ** 2)
    assert made == [999_999_999, 999_999_999]
    with pytest.raises(ConfigError, match=">= 0, got -1"):
        Generated(int, -1)


def test_a_hugging_face_data_set_is_a_split():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(
        [{"question": "1+1", "answer": "2"}, {"question": "2+2", "answer": "4"}]
    )
    samples = Samples(a_task(**datasets.DatasetDict(train=data)))
    assert samples.find(1) == ("train", {"question": "2+2", "answer": "4"})
