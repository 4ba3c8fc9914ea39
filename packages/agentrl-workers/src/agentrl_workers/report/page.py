"""Puts the parts of a report on a page."""

import base64
import hashlib
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from agentrl_core import Turn
from agentrl_workers.report import charts
from agentrl_workers.report.charts import format_number
from agentrl_workers.report.conversations import RecordedTrajectory
from agentrl_workers.report.folder import Run, as_mapping, as_number, read_run
from agentrl_workers.report.panels import make_panels

_LONGEST_TEXT = 6000
_MOST_TURNS = 24
_LONGEST_CONFIG = 40_000
_FACTS = (
    ("Max lag", "max_lag"),
    ("Groups per step", "batch.groups"),
    ("Group size", "batch.group_size"),
    ("Learning rate", "actor.learning_rate"),
    ("KL coefficient", "algorithm.kl_coefficient"),
    ("Rollout replicas", "rollout.replicas"),
)


def write_report(run_dir: str | Path) -> Path:
    """Make `report.html` of a run folder, whatever the run left there.

    Returns:
        Where the report is.

    Raises:
        ConfigError: there is no such folder.
        OSError: the report cannot be written.
    """
    folder = Path(run_dir)
    page = _render(read_run(folder))
    path = folder / "report.html"
    written = path.with_suffix(".html.tmp")
    # Half a character of a model's reply cannot be written as UTF-8.
    written.write_text(page, encoding="utf-8", errors="replace")
    written.replace(path)
    return path


def _render(run: Run) -> str:
    templates = files("agentrl_workers.report") / "templates"
    script = (templates / "report.js").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(clip=_clip, number=_number, percent=_percent, signed=_signed)
    template = environment.from_string((templates / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        run=run,
        facts=_facts(run),
        tiles=_tiles(run),
        results=[_result(name, result) for name, result in run.results.items()],
        panels=make_panels(run),
        conversations=_conversations(run),
        config_text=_clip(run.config_text, _LONGEST_CONFIG),
        area=charts,
        style=(templates / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    """What was run, as name and value."""
    summary, config = run.summary, run.config
    model = as_mapping(config.get("model")).get("path")
    facts = [
        ("Mode", {"async": "asynchronous", "sync": "synchronous"}.get(str(summary.get("mode")))),
        ("Seed", _number(summary.get("seed", config.get("seed")))),
        ("Model", Path(model).name if isinstance(model, str) else None),
        ("Parameters", _count(as_mapping(summary.get("model")).get("parameters"))),
        *((label, _number(_dig(config, key))) for label, key in _FACTS),
    ]
    return [(label, value) for label, value in facts if value not in (None, "–")]


def _tiles(run: Run) -> list[tuple[str, str]]:
    """The figures of the whole run, as name and value."""
    last = run.steps[-1] if run.steps else {}
    planned = as_number(run.config.get("steps"))
    steps = _number(run.summary.get("steps", last.get("step", 0)))
    # A run that was interrupted has no wall time of its own, but its steps carry clock readings.
    stepped_s = as_number(last.get("wall_s")) - as_number(run.steps[0].get("wall_s")) if run.steps else 0.0
    wall_s = as_number(run.summary.get("wall_s", stepped_s))
    memory_mb = as_number(run.summary.get("peak_rss_mb"))
    trained = as_mapping(run.summary.get("ledger")).get("trained", last.get("ledger/trained"))
    return [
        ("Training steps", f"{steps} of {_number(planned)}" if math.isfinite(planned) else steps),
        ("Wall time", _duration(wall_s)),
        ("Trajectories trained", _number(trained)),
        ("Tokens per second", _number(_mean(run, "throughput/tokens_per_s"))),
        ("Peak memory", f"{memory_mb / 1024:.2f} GiB" if math.isfinite(memory_mb) else "–"),
    ]


def _mean(run: Run, name: str) -> float:
    values = [value for value in (as_number(step.get(name)) for step in run.steps) if math.isfinite(value)]
    return sum(values) / len(values) if values else math.nan


def _result(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table of before and after."""
    before, after = (_evaluation(result.get(when)) for when in ("before", "after"))
    optimum = as_number(result.get("optimum"))
    gain = after["rate"] - before["rate"]
    share = after["rate"] / optimum if optimum > 0 else math.nan
    verdict = "–"
    if math.isfinite(after["low"]) and math.isfinite(before["low"]):
        apart = after["low"] > before["high"] or after["high"] < before["low"]
        verdict = f"{'intervals apart' if apart else 'intervals overlap'}"
    return {
        "name": name,
        "before": before,
        "after": after,
        "optimum": optimum,
        "gain": gain,
        "share": share,
        "verdict": verdict,
        "is_apart": verdict == "intervals apart",
    }


def _evaluation(value: Any) -> dict[str, float]:
    evaluation = as_mapping(value)
    return {name: as_number(evaluation.get(name)) for name in ("rate", "low", "high", "n", "successes")}


def _conversations(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "when": "late" if one.is_late else "early",
            "is_success": one.is_success,
            # How a task began and how it ended: what most readers want to see first.
            "is_open": one.is_late == one.is_success,
            "step": one.record.step,
            "advantage": one.record.advantage,
            "trajectory": one.record.trajectory,
            "turns": _turns(one.record),
            "num_hidden": max(0, len(one.record.trajectory.turns) - _MOST_TURNS),
        }
        for one in run.conversations
    ]


def _turns(record: RecordedTrajectory) -> list[dict[str, Any]]:
    shown = record.trajectory.turns[:_MOST_TURNS]
    texts = [*record.text, *[None] * len(shown)][: len(shown)]
    return [
        {
            "context": text.context if text else f"({len(turn.context_ids)} tokens, not decoded)",
            "reply": text.reply if text else f"({len(turn.token_ids)} tokens, not decoded)",
            "context_tokens": len(turn.context_ids),
            "reply_tokens": len(turn.token_ids),
            "versions": _versions(turn),
            "logp": sum(turn.logps) / len(turn.logps) if turn.logps else math.nan,
            "reward": turn.reward,
            "starts_sample": turn.starts_sample,
        }
        for turn, text in zip(shown, texts, strict=True)
    ]


def _versions(turn: Turn) -> str:
    """`v3`, or `v3 tokens 0–9, v4 tokens 10–14` where the weights changed within the reply."""
    if len(turn.segments) <= 1:
        return f"v{turn.segments[0].version}" if turn.segments else "–"
    return ", ".join(f"v{one.version} tokens {one.start}–{one.end - 1}" for one in turn.segments)


def _clip(text: str, longest: int = _LONGEST_TEXT) -> str:
    """The text, or its beginning and end with a note of what is left out."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def _dig(tree: Mapping[str, Any], dotted: str) -> Any:
    *parents, leaf = dotted.split(".")
    for parent in parents:
        tree = as_mapping(tree.get(parent))
    return tree.get(leaf)


def _number(value: Any) -> str:
    return format_number(as_number(value))


def _count(value: Any) -> str:
    number = as_number(value)
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return format_number(number)


def _percent(value: Any) -> str:
    number = as_number(value)
    return f"{100 * number:.1f}" if math.isfinite(number) else "–"


def _signed(value: Any) -> str:
    number = as_number(value)
    return f"{number:+.2f}" if math.isfinite(number) else "–"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute:02} min"
    return f"{minute} min {second:02} s" if minute else f"{second} s"
