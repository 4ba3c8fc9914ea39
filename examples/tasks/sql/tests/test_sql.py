import asyncio
import shutil
import sqlite3

import pytest
from agentrl_task_sql import Sql, ask, make_world
from agentrl_task_sql.questions import fill

from agentrl_core import ConfigError
from agentrl_env_sdk import testing
from agentrl_env_sdk.testing import OracleAgent

LEVELS = ["easy", "medium", "hard"]
needs_mariadb = pytest.mark.skipif(
    shutil.which("mariadbd", path="/usr/sbin:/usr/bin") is None, reason="no MariaDB here"
)


@pytest.mark.parametrize("difficulty", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_best_play_wins_everywhere(play, difficulty, split):
    task = Sql(difficulty)
    start = 0 if split == "train" else 1000
    for index in range(start, start + 30):
        episode = play(task, index=index)
        episode.play(OracleAgent(task.oracle))
        assert (episode.metrics["score"], episode.reward) == (1.0, pytest.approx(1.0)), index


def test_questions_are_of_many_kinds_and_stay_the_same():
    asked = {ask("hard", f"train/{number}")[1].text for number in range(200)}
    assert len(asked) > 15
    assert ask("hard", "train/7") == ask("hard", "train/7")
    assert make_world("shop", "a") == make_world("shop", "a") != make_world("shop", "b")


def test_answers_are_compared_by_value(play):
    world, question = ask("easy", "train/0")
    ((expected,),) = fill(world).execute(question.sql).fetchall()
    for given in (expected, f" '{expected}' ", f"{expected}."):
        episode = play(Sql(), index=0)
        episode.call("answer", value=str(given))
        assert episode.metrics["score"] == 1.0
    episode = play(Sql(), index=0)
    episode.call("answer", value="nothing of it")
    assert (episode.metrics["score"], episode.reward) == (0.0, 0.0)


def index_of_a_change() -> int:
    return next(number for number in range(100) if ask("medium", f"train/{number}")[1].is_change)


def test_a_change_is_judged_by_the_whole_database(play):
    index = index_of_a_change()
    world, question = ask("medium", f"train/{index}")
    for extra, score in ((None, 1.0), (f"DELETE FROM {world.tables[0].name} WHERE id = 1", 0.0)):
        episode = play(Sql("medium"), index=index)
        episode.call("query", sql=question.sql)
        if extra:
            episode.call("query", sql=extra)
        episode.call("answer", value="done")
        assert episode.metrics["score"] == score
    episode = play(Sql("medium"), index=index)
    episode.call("answer", value="done")
    assert episode.metrics["score"] == 0.0


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH DATABASE '/etc/passwd' AS x",
        "PRAGMA database_list",
        "SELECT load_extension('x')",
        "SELECT zeroblob(1000000000)",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n",
        "SELECT 1; SELECT 2",
        "nonsense",
        "\x00",
        "",
    ],
)
def test_a_statement_that_reaches_too_far_is_refused_and_the_episode_goes_on(play, statement):
    episode = play(Sql(), index=0)
    said = episode.call("query", sql=statement).text
    assert said.startswith("error: ") or said == "ok"
    assert not episode.finished
    assert episode.call("query", sql="SELECT 1").text.endswith("1")


def test_long_results_are_cut(play):
    episode = play(Sql(), index=0)
    many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100) SELECT x FROM n"
    lines = episode.call("query", sql=many).text.splitlines()
    assert lines[:2] == ["x", "1"]
    assert lines[-1] == "(only the first 20 rows are shown)"
    assert len(lines) == 22


@needs_mariadb
def test_mariadb_gives_the_same_answers():
    async def main():
        task = Sql("hard", database="mariadb")
        try:
            for index in range(12):
                async with testing.play(task, index=index) as episode:
                    await episode.play(OracleAgent(task.oracle))
                    assert episode.metrics["score"] == 1.0, index
        finally:
            await task.close()

    asyncio.run(main())


def test_settings_that_are_none_are_named():
    with pytest.raises(ConfigError, match="got 'tiny'"):
        Sql("tiny")
    with pytest.raises(ConfigError, match="got 'oracle'"):
        Sql(database="oracle")
    assert sqlite3.sqlite_version_info >= (3, 30)


@pytest.mark.parametrize("difficulty", LEVELS)
def test_the_task_keeps_the_rules(validate_task, difficulty):
    report = validate_task(Sql(difficulty))
    assert report.ok, report.table()
