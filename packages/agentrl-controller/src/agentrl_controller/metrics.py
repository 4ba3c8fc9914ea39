"""What Prometheus reads at `/metrics`."""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from agentrl_controller.controller import Controller
from agentrl_controller.statistics import Histogram

_HISTOGRAMS = {
    "start": "Seconds of a start, from the request to the answer.",
    "wait": "Seconds that starts waited in line for a slot.",
    "interact": "Seconds of an exchange, from the request to the answer.",
    "worker": "Seconds of an exchange that its worker took; the rest is the controller's.",
    "lag": "Seconds that the event loop was late with what was due.",
}


class Collector:
    """Reads a controller when Prometheus asks, so that requests pay only for counting."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        yield from self._sessions()
        yield from self._workers()
        statistics = self._controller.statistics
        requests = CounterMetricFamily(
            "agentrl_requests", "Starts and exchanges that were asked for.", labels=["route"]
        )
        for route, count in statistics.requests.items():
            requests.add_metric([route], count)
        yield requests
        errors = CounterMetricFamily(
            "agentrl_errors", "Requests that were refused or failed.", labels=["code"]
        )
        for code, count in statistics.errors.items():
            errors.add_metric([code], count)
        yield errors
        for name, text in _HISTOGRAMS.items():
            yield _histogram(f"agentrl_{name}_seconds", text, getattr(statistics, f"{name}_s"))

    def _sessions(self) -> Iterator[Metric]:
        sessions = self._controller.sessions
        live = GaugeMetricFamily("agentrl_sessions", "Live sessions.", labels=["task", "state"])
        counts = Counter((session.task, str(session.state)) for session in sessions.live.values())
        for labels, count in counts.items():
            live.add_metric(list(labels), count)
        yield live
        ended = CounterMetricFamily(
            "agentrl_sessions_ended", "Sessions that ended, by how.", labels=["state"]
        )
        for state, count in sessions.ended_count.items():
            ended.add_metric([str(state)], count)
        yield ended

    def _workers(self) -> Iterator[Metric]:
        controller = self._controller
        depth = GaugeMetricFamily("agentrl_queue_depth", "Starts that wait for a slot.", labels=["task"])
        workers = GaugeMetricFamily("agentrl_workers", "Task workers.", labels=["task", "status"])
        slots = GaugeMetricFamily("agentrl_slots", "Slots of living workers.", labels=["task", "kind"])
        for task, record in controller.registry.tasks.items():
            depth.add_metric([task], controller.admission.depth(task))
            for status, count in Counter(str(w.status) for w in record.workers.values()).items():
                workers.add_metric([task, status], count)
            living = [worker for worker in record.workers.values() if worker.is_alive]
            slots.add_metric([task, "capacity"], sum(worker.capacity for worker in living))
            slots.add_metric([task, "taken"], sum(worker.num_taken for worker in living))
        yield from (depth, workers, slots)
        exchanges = GaugeMetricFamily("agentrl_exchanges_in_flight", "Exchanges under way.")
        exchanges.add_metric([], controller.num_in_flight)
        yield exchanges


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.total_s)


def render(controller: Controller) -> bytes:
    """The state of a controller in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(controller))
    return generate_latest(registry)
