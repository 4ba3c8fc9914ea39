import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agentrl_core import ConfigError
from agentrl_env_sdk.scaffold import create
from agentrl_env_sdk.target import load_task

COMMAND = str(Path(sys.executable).parent / "agentrl-env")


def run(*arguments, folder, **variables):
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), **variables}
    return subprocess.run(
        [*map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    made = subprocess.run(
        [COMMAND, "init", "sea-words", "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"Next: cd {folder / 'sea-words'} && pip install" in made.stdout
    return folder / "sea-words"


def test_its_own_tests_pass(package):
    tested = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", folder=package)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "6 passed" in tested.stdout


def test_it_passes_the_conformance_suite(package):
    checked = run(COMMAND, "validate", "sea_words:SeaWords", "--json", "report.json", folder=package)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    report = json.loads((package / "report.json").read_text())
    assert {finding["verdict"] for finding in report["findings"]} == {"passed"}


def test_it_is_a_package_with_an_entry_and_its_data(package):
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["name"] == "sea-words"
    assert project["entry-points"] == {"agentrl_env.tasks": {"sea-words": "sea_words:SeaWords"}}
    samples = (package / "src" / "sea_words" / "data" / "words.jsonl").read_text().splitlines()
    assert len({json.loads(line)["word"] for line in samples}) == len(samples) == 32
    left = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert not [path for path in left if "__" in path.name.replace("__init__", "")]
    assert not [path for path in left if "__NAME__" in path.read_text() or "__CLASS__" in path.read_text()]


def test_it_is_played_and_stepped_back(package):
    typed = "ask letter=e\n:back\nask letter=a\n:state\n"
    played = subprocess.run(
        [COMMAND, "play", "sea_words:SeaWords"],
        cwd=package / "src",
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "'asked': 'a'" in played.stdout
    assert "played again" not in played.stdout


def test_an_installed_task_is_found_by_its_name(package, tmp_path, monkeypatch):
    installed = tmp_path / "sea_words-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: sea-words\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[agentrl_env.tasks]\nsea-words = sea_words:SeaWords\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(package / "src")
    assert load_task("sea-words").task_name == "sea-words"


@pytest.mark.parametrize(
    "name", ["Sea", "sea words", "sea_words", "-sea", "sea--words", "9sea", "", "../sea"]
)
def test_a_name_that_will_not_do_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="must be lower-case letters and digits with single hyphens"):
        create(name, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "random", "pytest", "agentrl-core"])
def test_a_name_that_another_module_has_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"there is a Python module `{name.replace('-', '_')}` already"):
        create(name, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "sea").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        create("sea", folder=tmp_path)
    with pytest.raises(ConfigError, match="a word of Python's own"):
        create("class", folder=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        create("sea", folder=tmp_path / "file")
