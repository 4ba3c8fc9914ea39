import json

from agentrl_workers.checkpoint import Checkpoints


def write(checkpoints, step):
    (checkpoints.begin(step) / "model").write_text(f"weights {step}")
    return checkpoints.commit(step, {"step": step})


def test_the_newest_complete_checkpoint_is_found_and_older_ones_go(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.latest() is None
    for step in (9, 10, 100):
        write(checkpoints, step)
    latest = checkpoints.latest()
    assert (latest.step, latest.state()) == (100, {"step": 100})
    assert (latest.folder / "model").read_text() == "weights 100"
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-000010", "step-000100"]


def test_what_a_crash_left_half_written_is_no_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    write(checkpoints, 5)
    (checkpoints.begin(6) / "model").write_text("half")
    assert checkpoints.latest().step == 5
    again = checkpoints.begin(6)
    assert list(again.iterdir()) == []
    (again / "model").write_text("whole")
    assert checkpoints.commit(6, {}).folder == checkpoints.latest().folder


def test_a_checkpoint_can_be_written_again(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    write(checkpoints, 5)
    checkpoints.begin(5)
    checkpoints.commit(5, {"again": True})
    assert json.loads((checkpoints.latest().folder / "trainer.json").read_text()) == {"again": True}
