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
    record: dict[str, float] = {"step": step, "wall_s": 5.1 * step}
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
        "staleness/dropped": random_.choice([0, 0, 0, 2]),
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


def a_line(step: int, *, number: int = 0, task: str = "guess-number", success: bool = True, **changes) -> dict:
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
