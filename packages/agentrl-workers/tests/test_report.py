import json
import math
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from agentrl_core import ConfigError, Outcome, Segment, Trajectory, Turn
from agentrl_workers.report import write_report
from agentrl_workers.report.charts import Series, draw_bars, draw_lines, format_number, nice_ticks
from agentrl_workers.report.conversations import pick_conversations
from agentrl_workers.report.folder import read_run
from agentrl_workers.report.intervals import mean_interval, wilson_interval
from agentrl_workers.report.panels import pool_moments

STEPS = 60
VOID = {"meta", "link", "br", "path", "circle", "img", "input", "hr"}


def a_step(step: int, random_: random.Random) -> dict[str, float]:
    skill = 1 / (1 + math.exp(-(step - 25) / 7))
    record: dict[str, float] = {"step": step, "wall_s": 1.7e9 + 5.1 * step}
    for task, low in (("guess-number", 0.25), ("key-value", 0.35)):
        success = min(1.0, max(0.0, low + (0.97 - low) * skill + random_.gauss(0, 0.05)))
        record |= {
            f"reward/{task}": 0.15 + 0.85 * success,
            f"reward_std/{task}": 0.45 * math.sqrt(success * (1 - success)) + 0.05,
            f"success/{task}": round(64 * success) / 64,
            f"num_trajectories/{task}": 64,
            f"turns/{task}": 4.2 - skill + random_.gauss(0, 0.1),
        }
    done = 128 * step
    return record | {
        "staleness/lag_mean": 1.1 + random_.random() * 0.4,
        "staleness/lag_max": random_.choice([2, 2, 3]),
        "staleness/dropped": 2 * (step // 7),
        "throughput/tokens_per_s": random_.gauss(4800, 250),
        "throughput/trajectories_per_min": random_.gauss(1500, 90),
        "policy/logp_gap_mean": 0.0007 + 0.0002 * random_.random(),
        "policy/logp_gap_max": 0.02 + 0.02 * random_.random(),
        "policy/kl_reference": 0.9 * skill + 0.02 * random_.random(),
        "policy/effective_sample_size": 0.93 + 0.05 * random_.random(),
        "policy/clip_fraction": 0.03 * random_.random(),
        "policy/entropy": 0.75 - 0.5 * skill,
        "policy/grad_norm": random_.gauss(0.8, 0.15),
        "policy/loss": random_.gauss(0, 0.02),
        "weights/version": step,
        "weights/publish_s": 0.05,
        "ledger/admitted": done + 192,
        "ledger/trained": done,
        "ledger/filtered": 3 * step,
        "ledger/failed": step,
        "ledger/pending": 192 - 4 * step % 64,
        "outcome/completed": 110 + 14 * skill,
        "outcome/truncated": 12 - 10 * skill,
        "outcome/agent_error": 6 - 5 * skill,
        "outcome/infrastructure_error": random_.choice([0, 0, 1]),
        "groups/zero_variance": round(1 + 8 * skill),
        "time/wait_s": 1.8 + 0.3 * random_.random(),
        "time/train_s": 3.0 + 0.3 * random_.random(),
    }


def a_turn(context: str, reply: str, *, version: int, reward: float = 0.0) -> tuple[Turn, dict[str, str]]:
    count = max(1, len(reply) // 3)
    middle = count // 2
    segments = (Segment(version=version, start=0, end=count),)
    if middle and version % 2:
        segments = (
            Segment(version=version, start=0, end=middle),
            Segment(version=version + 1, start=middle, end=count),
        )
    turn = Turn(
        context_ids=tuple(range(max(1, len(context) // 3))),
        token_ids=tuple(range(count)),
        logps=(-0.25,) * count,
        segments=segments,
        reward=reward,
    )
    return turn, {"context": context, "reply": reply}


def a_line(
    step: int, *, number: int = 0, task: str = "guess-number", success: bool = True, **changes
) -> dict:
    call = '<tool_call>\n{"name": "guess", "arguments": {"number": %d}}\n</tool_call><|im_end|>'
    played = [
        a_turn(
            "<|im_start|>system\nYou find a hidden number from 0 to 31.<|im_end|>\n"
            "<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n",
            call % 16,
            version=step - 1,
        ),
        a_turn(
            "\n<|im_start|>tool\nhigher<|im_end|>\n<|im_start|>assistant\n",
            call % 24,
            version=step,
            reward=1.0 if success else 0.1,
        ),
    ]
    trajectory = Trajectory(
        trajectory_id=f"{step}-{number}",
        task=task,
        index=number,
        group_id=f"{task}/{number}",
        turns=tuple(turn for turn, _ in played),
        outcome=Outcome.COMPLETED if success else Outcome.TRUNCATED,
        reason="" if success else "the limit of 2 turns was reached",
        **changes,
    )
    return {
        "step": step,
        "advantage": 0.87 if success else -1.14,
        "trajectory": trajectory.model_dump(mode="json"),
        "text": [text for _, text in played],
    }


def an_evaluation(successes: int, n: int, low: float, high: float) -> dict[str, float]:
    return {"n": n, "successes": successes, "rate": successes / n, "low": low, "high": high}


SUMMARY = {
    "tasks": {
        "guess-number": {
            "before": an_evaluation(56, 200, 0.2224, 0.3459),
            "after": an_evaluation(193, 200, 0.9296, 0.9829),
            "optimum": 1.0,
        },
        "key-value": {
            "before": an_evaluation(71, 200, 0.2921, 0.4235),
            "after": an_evaluation(184, 200, 0.8740, 0.9502),
            "optimum": 1.0,
        },
    },
    "wall_s": 321.4,
    "peak_rss_mb": 3321.0,
    "seed": 7,
    "steps": STEPS,
    "mode": "async",
    "outcomes": {"completed": 7300},
    "ledger": {"admitted": 7900, "trained": 7680, "filtered": 160, "failed": 60, "pending": 0},
    "model": {"parameters": 123_456},
}
CONFIG = {
    "seed": 7,
    "steps": STEPS,
    "max_lag": 4,
    "model": {"path": "models/quickstart"},
    "batch": {"groups": 16, "group_size": 8},
    "actor": {"learning_rate": 1e-3},
    "algorithm": {"kl_coefficient": 1e-4},
    "rollout": {"replicas": 1},
}


def make_run(folder: Path, *, steps: int = STEPS) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    random_ = random.Random(3)
    records = [a_step(step, random_) for step in range(1, steps + 1)]
    write_lines(folder / "metrics.jsonl", records)
    lines = [
        a_line(step, number=number, task=task, success=success)
        for step in range(1, 9)
        for number, (task, success) in enumerate(
            (task, success) for task in ("guess-number", "key-value") for success in (True, False)
        )
    ]
    write_lines(folder / "trajectories.jsonl", lines)
    return folder


def write_lines(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


class Page(HTMLParser):
    """The page as a browser would see it; fails where tags do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self.declared = False
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_decl(self, decl: str) -> None:
        self.declared = decl == "doctype html"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def tags(self, tag: str) -> int:
        return len([1 for name, _ in self.texts if name == tag])

    @property
    def text(self) -> str:
        return " ".join("".join(text for tag, text in self.texts if tag not in ("style", "script")).split())


def page_of(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float64)


def test_a_finished_run_shows_its_results_with_intervals_and_n(tmp_path: Path):
    page = page_of(make_run(tmp_path / "run-7"))
    assert "run-7" in page.text
    assert "28.0 % [22.2, 34.6] n = 200" in page.text
    assert "96.5 % [93.0, 98.3] n = 200" in page.text
    assert "+68.5 points intervals apart" in page.text
    assert "60 of 60" in page.text
    assert "5 min 21 s" in page.text
    assert "3.24 GiB" in page.text
    assert "123 k" in page.text
    assert "What is missing" not in page.text


def test_the_page_is_well_formed_and_fetches_nothing(tmp_path: Path):
    html = write_report(make_run(tmp_path / "run")).read_text()
    page = Page(html)
    assert page.declared
    assert "http://" not in html
    assert "https://" not in html
    assert {"src", "href", "srcset", "data", "action"}.isdisjoint(name for _, name, _ in page.attributes)
    assert "url(" not in html
    assert "@import" not in html


def test_every_area_of_the_metrics_has_a_chart(tmp_path: Path):
    page = page_of(make_run(tmp_path / "run"))
    for title in (
        "Success",
        "Reward",
        "Turns per trajectory",
        "Lag, updates",
        "Dropped as stale, so far",
        "Tokens per second",
        "Trajectories per minute",
        "Log-prob gap, mean, nats",
        "KL to the reference, nats",
        "Entropy, nats",
        "Gradient norm",
        "Ledger, samples so far",
        "Outcomes, trajectories",
    ):
        assert ("span", title) in page.texts
    assert (
        len([1 for tag, name, value in page.attributes if (tag, name, value) == ("path", "class", "band")])
        == 4
    )


def test_the_same_folder_gives_the_same_page(tmp_path: Path):
    run = make_run(tmp_path / "run")
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    assert sorted(path.name for path in run.iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "report.html",
        "summary.json",
        "trajectories.jsonl",
    ]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no run folder at"):
        write_report(tmp_path / "nowhere")


def test_an_empty_folder_gives_a_page_that_says_what_is_missing(tmp_path: Path):
    page = page_of(tmp_path)
    for said in (
        "summary.json is missing",
        "config.yaml is missing",
        "No training step was recorded",
        "No conversation was recorded",
    ):
        assert said in page.text
    assert page.tags("table") == 0


def test_an_interrupted_run_shows_what_its_steps_know(tmp_path: Path):
    run = make_run(tmp_path / "run", steps=41)
    (run / "summary.json").unlink()
    text = page_of(run).text
    assert "The run is still going, or was interrupted." in text
    # 40 intervals of 5.1 s, and 128 trajectories a step.
    assert "Training steps 41 of 60 Wall time 3 min 24 s Trajectories trained 5,248" in text


def test_a_run_without_the_second_evaluation_says_so(tmp_path: Path):
    run = make_run(tmp_path / "run")
    tasks = {name: {**result, "after": None} for name, result in SUMMARY["tasks"].items()}
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "tasks": tasks}))
    page = page_of(run)
    assert "guess-number: there is no evaluation after training." in page.text
    assert "28.0 % [22.2, 34.6]" in page.text
    assert "not evaluated" in page.text


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_run_of_few_steps_has_a_page(tmp_path: Path, steps: int):
    page = page_of(make_run(tmp_path / "run", steps=steps))
    assert ("No training step was recorded." in page.text) == (steps == 0)
    assert any(value == "dot" for _, _, value in page.attributes) == (steps == 1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", b'{"tasks": {"guess'),
        ("summary.json", b"[]"),
        (
            "summary.json",
            b'{"tasks": [1], "wall_s": "long", "mode": {}, "model": 3, "ledger": [], "steps": {}}',
        ),
        ("summary.json", b'{"tasks": {"a": {"before": 3, "after": {"rate": NaN}, "optimum": null}}}'),
        ("config.yaml", b"\xff\xfe: ["),
        ("config.yaml", b"model: {path: [1]}\nbatch: 3\nsteps: .nan"),
        ("metrics.jsonl", b'{"step": 1, "reward/x": "high", "success/x": null}\n{"step": 2, "rew'),
        ("metrics.jsonl", b'{"step": 1, "policy/loss": 1e999}\n[]\n\n{"step": 3, "policy/loss": -1e300}\n'),
        ("trajectories.jsonl", b'{"step": 1, "trajectory": {}}\nnull\n\xff\n'),
    ],
)
def test_broken_pieces_never_break_the_page(tmp_path: Path, name: str, content: bytes):
    run = make_run(tmp_path / "run")
    (run / name).write_bytes(content)
    page = page_of(run)
    assert "AgentRL training run" in page.text


HOSTILE = "</pre></style></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"


def test_hostile_text_is_shown_and_never_run(tmp_path: Path):
    run = make_run(tmp_path / "run")
    plain = page_of(run)
    summary = {**SUMMARY, "tasks": {HOSTILE: SUMMARY["tasks"]["guess-number"]}, "mode": HOSTILE}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "model": {"path": HOSTILE}}))
    write_lines(
        run / "metrics.jsonl",
        [{"step": 1, f"reward/{HOSTILE}": 0.5, f"outcome/{HOSTILE}": 3, f"success/{HOSTILE}": 0.5}],
    )
    line = a_line(1, task=HOSTILE, success=False)
    line["text"] = [{"context": HOSTILE, "reply": HOSTILE}] * 2
    line["trajectory"] |= {"reason": HOSTILE, "index": HOSTILE}
    write_lines(run / "trajectories.jsonl", [line])
    page = page_of(run)
    assert page.tags("script") == plain.tags("script") == 1
    assert page.tags("style") == plain.tags("style") == 1
    assert ("pre", "\n" + HOSTILE) in page.texts
    assert not any(tag == "img" or name.startswith("on") for tag, name, _ in page.attributes)


def test_half_characters_and_endless_replies_are_shown_in_part(tmp_path: Path):
    run = make_run(tmp_path / "run")
    line = a_line(1)
    line["text"] = [{"context": "left \ud800 right", "reply": "a" * 1_000_000 + "the end"}, line["text"][1]]
    (run / "trajectories.jsonl").write_text(json.dumps(line) + "\n")
    path = write_report(run)
    text = Page(path.read_text(encoding="utf-8")).text
    assert "left ? right" in text
    assert "994,007 characters left out" in text
    assert "the end" in text
    assert path.stat().st_size < 200_000


def test_turns_show_their_versions_rewards_and_who_wrote_the_tokens(tmp_path: Path):
    run = make_run(tmp_path / "run")
    write_lines(run / "trajectories.jsonl", [a_line(2)])
    page = page_of(run)
    # A reply of 81 characters has 27 tokens here, and odd versions give way to the next one in the middle.
    assert "v1 tokens 0–12, v2 tokens 13–26" in page.text
    assert "reward +1.00" in page.text
    classes = [value for tag, name, value in page.attributes if (tag, name) == ("pre", "class")]
    assert classes == ["environment", "policy", "environment", "policy", "config"]


def test_a_trajectory_without_text_is_described_by_its_tokens(tmp_path: Path):
    run = make_run(tmp_path / "run")
    write_lines(run / "trajectories.jsonl", [{**a_line(2), "text": []}])
    assert "(27 tokens, not decoded)" in page_of(run).text


def test_the_first_and_last_of_each_kind_are_picked(tmp_path: Path):
    path = tmp_path / "trajectories.jsonl"
    lines = [a_line(step, number=0, success=step % 2 == 0) for step in range(1, 8)]
    lines.append(a_line(9, task="alone", success=False))
    failed = a_line(8)
    failed["trajectory"]["outcome"] = "infrastructure_error"
    write_lines(path, [*lines, failed])
    picked, unreadable = pick_conversations(path)
    assert unreadable == 0
    assert [(one.record.trajectory.task, one.record.step, one.is_late, one.is_success) for one in picked] == [
        ("alone", 9, False, False),
        ("guess-number", 1, False, False),
        ("guess-number", 2, False, True),
        ("guess-number", 7, True, False),
        ("guess-number", 6, True, True),
    ]


def test_a_score_decides_over_the_reward_whether_an_episode_succeeded(tmp_path: Path):
    path = tmp_path / "trajectories.jsonl"
    write_lines(path, [a_line(1, success=True, score=0.5), a_line(2, success=False, score=1.0)])
    picked, _ = pick_conversations(path)
    assert {one.record.step: one.is_success for one in picked} == {1: False, 2: True}


def test_unreadable_and_endless_lines_are_counted(tmp_path: Path):
    path = tmp_path / "trajectories.jsonl"
    line = json.dumps(a_line(1)).encode()
    path.write_bytes(b'{"step": 1}\n' + b"x" * (9 * 2**20) + b"\n\n" + line + b'\n{"step"')
    picked, unreadable = pick_conversations(path)
    assert [one.record.step for one in picked] == [1]
    assert unreadable == 3


def test_wilson_bounds_are_those_worked_out_by_hand():
    # 8 of 10, z = 1.96: (0.8 + 3.8416/20) / 1.38416 = 0.71674 and
    # 1.96 * sqrt(0.016 + 3.8416/400) / 1.38416 = 0.22658.
    low, high = wilson_interval(values(0.8, 0.0, 1.0, 0.5), values(10, 10, 10, 0))
    assert low[0] == pytest.approx(0.71674 - 0.22658, abs=2e-5)
    assert high[0] == pytest.approx(0.71674 + 0.22658, abs=2e-5)
    # Of none of 10 the upper bound is z^2 / (10 + z^2).
    assert (low[1], high[1]) == pytest.approx((0.0, 3.8416 / 13.8416), abs=2e-5)
    assert (low[2], high[2]) == pytest.approx((10 / 13.8416, 1.0), abs=2e-5)
    assert math.isnan(low[3])
    assert math.isnan(high[3])


def test_the_interval_of_a_mean_shrinks_with_the_root_of_the_count():
    low, high = mean_interval(values(0.5, 0.5), values(0.2, 0.2), values(100, 0))
    assert (low[0], high[0]) == (pytest.approx(0.4608, abs=1e-6), pytest.approx(0.5392, abs=1e-6))
    assert math.isnan(low[1])


def test_pooled_moments_are_those_of_the_union():
    first, second = np.array([0.0, 1.0, 1.0]), np.array([0.5, 0.25, 0.0, 0.75, 1.0])
    mean, deviation, count = pool_moments(
        np.array([[first.mean(), second.mean(), np.nan]]),
        np.array([[first.std(ddof=1), second.std(ddof=1), np.nan]]),
        np.array([[3.0, 5.0, np.nan]]),
    )
    union = np.concatenate([first, second])
    assert mean[0] == pytest.approx(union.mean())
    assert deviation[0] == pytest.approx(union.std(ddof=1))
    assert count[0] == 8


def test_samples_of_unknown_size_pool_without_a_deviation():
    unknown = np.full((1, 2), np.nan)
    mean, deviation, count = pool_moments(np.array([[0.2, 0.6]]), np.array([[0.1, 0.1]]), unknown)
    assert mean[0] == pytest.approx(0.4)
    assert math.isnan(deviation[0])
    assert math.isnan(count[0])


def test_a_long_run_is_pooled_into_few_points(tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    records = [
        {"step": step, "success/t": step % 2, "num_trajectories/t": 10, "outcome/completed": 1}
        for step in range(1, 1001)
    ]
    write_lines(run / "metrics.jsonl", records)
    page = page_of(run)
    assert "Each point pools 7 steps." in page.text
    (xs,) = {value for _, name, value in page.attributes if name == "data-xs"}
    assert len(xs.split("|")) == 143
    assert xs.startswith("7|14|")
    # Of steps 1 to 7, four succeed; of 7 steps, 7 are completed.
    shown = [value for _, name, value in page.attributes if name == "data-values"]
    assert [value.split("|")[0] for value in shown] == ["0.571", "7"]


def test_a_step_that_is_written_twice_counts_once(tmp_path: Path):
    write_lines(tmp_path / "metrics.jsonl", [{"step": 2}, {"step": 1}, {"step": 2, "policy/loss": 1.5}])
    assert read_run(tmp_path).steps == ({"step": 1}, {"step": 2, "policy/loss": 1.5})


def test_a_line_breaks_where_a_value_is_missing():
    chart = draw_lines(
        "t", values(1, 2, 3, 4, 5), [Series("a", "c1", values(0, 1, math.nan, 0.5, math.nan))], floor=0.0
    )
    assert chart is not None
    # The area is 48 to 392 wide and 8 (value 1) to 176 (value 0) high.
    assert [(mark.kind, mark.path) for mark in chart.marks] == [
        ("line", "M48.0 176.0L134.0 8.0"),
        ("dot", "M306.0 92.0L306.0 92.0"),
    ]
    assert [label for _, label in chart.x_ticks] == ["1", "2", "3", "4", "5"]
    assert chart.keys[0].values == "0|1|–|0.5|–"


def test_stacked_bars_stand_on_each_other():
    chart = draw_bars("t", values(1, 2), [Series("a", "c1", values(1, 0)), Series("b", "c2", values(1, 4))])
    assert chart is not None
    # Two columns of 172 centred at 134 and 306; bars 40 wide; 42 units of height a count.
    assert [mark.path for mark in chart.marks] == [
        "M114.0 176.0h40.0V134.0h-40.0Z",
        "M114.0 134.0h40.0V92.0h-40.0ZM286.0 176.0h40.0V8.0h-40.0Z",
    ]


def test_a_chart_without_values_is_not_drawn():
    nothing = [Series("a", "c1", values(math.nan, math.nan))]
    assert draw_lines("t", values(1, 2), nothing) is None
    assert draw_bars("t", values(1, 2), nothing) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 3.0, [0.0, 1.0, 2.0, 3.0]),
        (-0.04, 0.05, [-0.04, -0.02, 0.0, 0.02, 0.04]),
        (0.0, 5700.0, [0.0, 2000.0, 4000.0]),
    ],
)
def test_ticks_are_round_and_within_the_range(low: float, high: float, expected: list[float]):
    assert nice_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (4812.4, "4,812"),
        (0.0314159, "0.0314"),
        (0.0000123, "1.2e-05"),
        (3.0, "3"),
        (math.nan, "–"),
        (0.0, "0"),
    ],
)
def test_numbers_are_short(value: float, shown: str):
    assert format_number(value) == shown
