"""What Prometheus reads from a worker: episodes, sessions, turns, and how late the event loop is."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from agentrl_env_sdk.worker.lag import LoopLag
    from agentrl_env_sdk.worker.runner import Runner

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Statistics:
    """Figures of a worker; what others count already is read when it is asked for."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._turns = Histogram(
            "agentrl_env_turn_seconds",
            "Time from an agent's messages to the environment's answer.",
            buckets=_BUCKETS_S,
            registry=self._registry,
        )

    def turn(self, duration_s: float) -> None:
        """Count a turn."""
        self._turns.observe(duration_s)

    def watch(self, runner: "Runner", lag: "LoopLag | None" = None) -> None:
        """Report a runner's episodes, and the lateness of its loop."""
        self._registry.register(_Reader(runner, lag))

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Reader(Collector):
    def __init__(self, runner: "Runner", lag: "LoopLag | None") -> None:
        self._runner = runner
        self._lag = lag

    def collect(self) -> Iterator[Metric]:
        runner = self._runner
        task = runner.task.task_name
        episodes = CounterMetricFamily(
            "agentrl_env_episodes", "Episodes that have ended.", labels=["task", "status"]
        )
        for status, count in runner.num_ended.items():
            episodes.add_metric([task, status], count)
        yield episodes
        for name, text, value in (
            ("sessions", "Episodes that are being played.", len(runner.sessions)),
            ("slots", "Episodes that may be played at the same time.", runner.concurrency),
        ):
            gauge = GaugeMetricFamily(f"agentrl_env_{name}", text, labels=["task"])
            gauge.add_metric([task], value)
            yield gauge
        if self._lag is not None:
            text = "How late the event loop was lately, at worst."
            yield GaugeMetricFamily("agentrl_env_loop_lag_seconds", text, value=self._lag.worst_s)
