from pathlib import Path

import pytest

from agentrl_core import ConfigError
from agentrl_workers.quickstart import Options
from agentrl_workers.quickstart.first_model import shipped_model
from agentrl_workers.quickstart.options import OPTIMA, TARGETS, resolve
from agentrl_workers.quickstart.run import prepare_folder

CONTROLLER = "http://127.0.0.1:1/api"


def resolved(options: Options):
    return resolve(options, controller=CONTROLLER, model=Path("model"))


def test_options_override_the_preset(tmp_path: Path) -> None:
    config = resolved(Options(tmp_path, seed=7, steps=5, sync=True, overrides=("batch.groups=4",)))
    assert (config.seed, config.steps, config.max_lag, config.batch.groups) == (7, 5, 0, 4)
    assert config.controller == CONTROLLER
    assert config.model.path == "model"


def test_quick_is_shorter_but_steps_wins(tmp_path: Path) -> None:
    assert resolved(Options(tmp_path, quick=True)).steps == 30
    assert resolved(Options(tmp_path, quick=True, steps=7)).steps == 7
    assert Options(tmp_path, quick=True).samples < Options(tmp_path).samples


def test_the_preset_trains_every_task_that_is_served(tmp_path: Path) -> None:
    names = [task.name for task in resolved(Options(tmp_path)).tasks]
    assert names == list(TARGETS) == list(OPTIMA)


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        prepare_folder(Options(tmp_path))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_nothing_to_resume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run to resume"):
        prepare_folder(Options(tmp_path / "none", resume=True))


def test_a_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the run folder"):
        prepare_folder(Options(tmp_path / "file" / "run"))


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 5 * 2**20}))
    with pytest.raises(ConfigError, match="5 MB free, a run needs 300 MB"):
        prepare_folder(Options(tmp_path / "run"))


def test_the_model_that_ships_is_small() -> None:
    folder = shipped_model()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2 * 2**20
