"""The report's three forms, the command, and the pytest plugin."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentrl_core import ConfigError
from agentrl_env_sdk.tasks import Guess
from agentrl_env_sdk.validate import CHECKS, Finding, Report, Verdict
from agentrl_env_sdk.validate.loading import load_oracle

COMMAND = str(Path(sys.executable).parent / "agentrl-env")

TASK = '''
import random
from agentrl_env_sdk import Session, Task, tool


class Dice(Task):
    """The dice are not the session's."""

    splits = {"train": 3}
    optimum = 1.0

    def setup(self, session: Session) -> str:
        return f"it shows {random.random()}; add one"

    @tool
    def add(self, session: Session, number: int) -> str:
        """Add."""
        session.finish(reward=float(number == 1))
        return "added"
'''
ORACLE = """
from agentrl_env_sdk.oracle import act


def best(session):
    yield act("add", number=1)


best_of_all = [1]
"""


@pytest.fixture
def report():
    return Report(
        "dice.py",
        "dice",
        (0, "a"),
        (
            Finding("one", Verdict.PASSED, "looked", notes=("so-so",), seconds=0.25),
            Finding("two", Verdict.FAILED, "looked again", ("bad \ud800 \x00", "worse\nstill"), seconds=0.5),
            Finding("three", Verdict.SKIPPED, "no way to tell"),
        ),
    )


def test_a_report_reads_well_in_a_terminal(report):
    assert report.table().splitlines() == [
        "dice (dice.py), samples 0, 'a'",
        "",
        "ok    one              looked",
        "                       - so-so",
        "FAIL  two              looked again",
        "                       ! bad \ud800 \x00",
        "                       ! worse",
        "                         still",
        "skip  three            no way to tell",
        "",
        "1 passed, 1 failed, 1 skipped",
    ]
    assert not report.ok
    assert report.finding("three").did == "no way to tell"


def test_a_report_is_json_and_junit_whatever_is_in_it(report, tmp_path):
    report.write(json_file=tmp_path / "r.json", junit_file=tmp_path / "r.xml")
    read = json.loads((tmp_path / "r.json").read_bytes())
    assert (read["ok"], read["samples"], read["findings"][1]["verdict"]) == (False, [0, "a"], "failed")
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()[0]
    assert suite.attrib | {"time": ""} == {
        "name": "agentrl-env validate dice.py",
        "tests": "3",
        "failures": "1",
        "skipped": "1",
        "errors": "0",
        "time": "",
    }
    passed, failed, skipped = suite
    assert (passed.get("name"), passed.get("time"), passed.find("failure")) == ("one", "0.250", None)
    assert failed.find("failure").text == "bad ? ?\nworse\nstill"
    assert skipped.find("skipped").get("message") == "no way to tell"
    with pytest.raises(ConfigError, match="cannot write the report to"):
        report.write(json_file=tmp_path / "no" / "r.json")


def run(*arguments, folder):
    command = [*map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "dice.py").write_text(TASK)
    (tmp_path / "best.py").write_text(ORACLE)
    (tmp_path / "pytest.ini").touch()  # So that no settings further up hold.
    return tmp_path


def test_the_command_reports_and_fails(folder):
    chosen = ("--only", "same-seed", "--only", "oracle", "--only", "schemas")
    files = ("--json", "r.json", "--junit", "r.xml")
    checked = run(COMMAND, "validate", "dice.py", "--oracle", "best.py:best", *chosen, *files, folder=folder)
    assert checked.returncode == 1, checked.stderr
    assert "FAIL  same-seed" in checked.stdout
    assert "ok    oracle           mean score 1.000 of 1 on 3 samples" in checked.stdout
    assert json.loads((folder / "r.json").read_text())["target"] == "dice.py"
    assert ElementTree.parse(folder / "r.xml").getroot()[0].get("failures") == "1"
    passing = run(
        COMMAND,
        "validate",
        "dice.py",
        "--skip",
        "same-seed",
        "--skip",
        "random",
        "--samples",
        1,
        folder=folder,
    )
    assert (passing.returncode, "same-seed" in passing.stdout) == (0, False), passing.stdout


def test_what_depends_on_the_order_of_a_set_is_found_in_another_process(folder):
    fruits = "{'apple', 'pear', 'plum', 'fig', 'kiwi', 'melon', 'grape', 'lemon'}"
    text = TASK.replace('f"it shows {random.random()}; add one"', f'", ".join({fruits}) + " add one"')
    (folder / "fruits.py").write_text(text)
    checked = run(COMMAND, "validate", "fruits.py", "--only", "same-seed", folder=folder)
    assert checked.returncode == 1
    assert "sample 0 with seed 1 is another one in another process: opening, message 1" in checked.stdout
    (folder / "fruits.py").write_text(text.replace(fruits, f"sorted({fruits})"))
    checked = run(COMMAND, "validate", "fruits.py", "--only", "same-seed", folder=folder)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--only", "orakel"), "there is no check `orakel`"),
        (("--split", "dev"), "there is no split `dev`"),
        (("--oracle", "best"), "`--oracle` must be `module:function`"),
    ],
)
def test_the_command_names_what_does_not_exist(folder, options, told):
    checked = run(COMMAND, "validate", "dice.py", *options, folder=folder)
    assert checked.returncode == 1
    assert told in checked.stderr


def test_an_oracle_is_found_by_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert load_oracle("best:best").__name__ == "best"
    for target, told in (
        ("best:worst", "has no function `worst`"),
        ("best:best_of_all", "has no function `best_of_all`"),
        ("nowhere:best", "cannot be imported: ModuleNotFoundError"),
        ("nowhere.py:best", "cannot be imported"),
    ):
        with pytest.raises(ConfigError, match=told):
            load_oracle(target)


def test_the_plugin_makes_each_check_a_test(folder):
    checked = run(
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v"),
        *("--agentrl-env-validate", "dice.py", "--agentrl-env-validate", "agentrl_env_sdk.tasks:Guess"),
        folder=folder,
    )
    assert checked.returncode == 1
    assert "validate[dice.py]::same-seed FAILED" in checked.stdout
    assert "is another one the second time" in checked.stdout
    assert "Traceback" not in checked.stdout
    passed = [f"validate[agentrl_env_sdk.tasks:Guess]::{name} PASSED" in checked.stdout for name in CHECKS]
    assert passed == [True] * len(CHECKS), checked.stdout


def test_the_plugin_s_fixtures_play_and_validate(play, validate_task):
    episode = play(Guess, index=0, seed=1)
    assert episode.call("guess", number=episode.session.sample).finish
    assert validate_task(Guess, only=["oracle"]).ok
