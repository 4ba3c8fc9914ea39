import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentrl_workers.metrics import Metrics, read_metrics


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def scalars_of(folder: Path) -> list[tuple[int, str, float]]:
    """Every scalar of the event files, by the TFRecord framing: length, crc, bytes, crc."""
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            event = Event.FromString(data[offset + 12 : offset + 12 + length])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            offset += 12 + length + 4
        assert offset == len(data)
    return found


def test_a_step_is_one_json_line_that_is_on_disk_at_once(tmp_path: Path):
    with Metrics(tmp_path / "run") as metrics:
        metrics.log(
            {"step": 1, "wall_s": 2.5, "reward/guess": np.float32(0.5), "weights/version": np.int64(3)}
        )
        assert lines_of(tmp_path / "run") == [
            {"step": 1, "wall_s": 2.5, "reward/guess": 0.5, "weights/version": 3}
        ]


def test_what_is_not_finite_is_null_on_disk_and_nan_when_read(tmp_path: Path):
    with Metrics(tmp_path) as metrics:
        metrics.log({"step": 1, "policy/entropy": math.nan, "policy/loss": math.inf, "policy/grad_norm": 1})
    assert lines_of(tmp_path) == [
        {"step": 1, "policy/entropy": None, "policy/loss": None, "policy/grad_norm": 1}
    ]
    (record,) = read_metrics(tmp_path)
    assert math.isnan(record["policy/entropy"])
    assert record["policy/grad_norm"] == 1


def test_tensorboard_gets_the_finite_numbers_under_their_names(tmp_path: Path):
    with Metrics(tmp_path) as metrics:
        metrics.log({"step": 1, "reward/guess": 0.25, "policy/entropy": math.nan})
        metrics.log({"step": 2, "reward/guess": 0.75})
        # Read before closing: a live TensorBoard follows the run.
        assert scalars_of(tmp_path) == [(1, "reward/guess", 0.25), (2, "reward/guess", 0.75)]


def test_resuming_drops_later_steps_and_no_step_appears_twice(tmp_path: Path):
    with Metrics(tmp_path) as metrics:
        for step in range(1, 6):
            metrics.log({"step": step, "policy/loss": 10 + step})
    with Metrics(tmp_path, resumed_step=3) as metrics:
        assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]
        metrics.log({"step": 4, "policy/loss": 0.5})
    assert [(record["step"], record["policy/loss"]) for record in read_metrics(tmp_path)] == [
        (1, 11),
        (2, 12),
        (3, 13),
        (4, 0.5),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_a_new_run_in_an_old_folder_starts_without_its_steps(tmp_path: Path):
    with Metrics(tmp_path) as metrics:
        metrics.log({"step": 1, "policy/loss": 1.0})
    with Metrics(tmp_path):
        assert read_metrics(tmp_path) == []


@pytest.mark.parametrize(
    "torn", [b'{"step": 3, "policy/l', b'{"step": 3}', b"\xff\xfe", b'"step"', b"\x00\x00"]
)
def test_a_torn_last_line_is_left_out_and_never_glued_to_the_next(tmp_path: Path, torn: bytes):
    with Metrics(tmp_path) as metrics:
        metrics.log({"step": 1})
        metrics.log({"step": 2})
    with (tmp_path / "metrics.jsonl").open("ab") as lines:
        lines.write(torn)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]
    with Metrics(tmp_path, resumed_step=9) as metrics:
        metrics.log({"step": 3})
    assert lines_of(tmp_path) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_a_step_is_logged_once(tmp_path: Path):
    with Metrics(tmp_path) as metrics:
        metrics.log({"step": 1})
        with pytest.raises(ValueError, match="step 1 comes after step 1"):
            metrics.log({"step": 1})
    assert lines_of(tmp_path) == [{"step": 1}]


def test_a_refused_record_leaves_nothing_behind(tmp_path: Path):
    with Metrics(tmp_path) as metrics:
        with pytest.raises(TypeError, match="`reward/guess` must be a number, got 'high'"):
            metrics.log({"step": 1, "reward/guess": "high"})
        with pytest.raises(ValueError, match="`step` must be a whole number, got None"):
            metrics.log({"reward/guess": 1.0})
        metrics.log({"step": 1, "reward/guess": 1.0})
    assert lines_of(tmp_path) == [{"step": 1, "reward/guess": 1.0}]


def test_a_folder_without_metrics_reads_as_no_steps(tmp_path: Path):
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("module", ["metrics", "progress", "report"])
def test_reading_a_run_loads_neither_torch_nor_ray(module: str):
    code = f"import sys, agentrl_workers.{module}; print({{'torch', 'ray'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
