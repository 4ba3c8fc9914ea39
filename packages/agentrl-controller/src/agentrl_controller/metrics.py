"""What Prometheus reads at `/metrics`."""

from collections import Counter
from collections.abc import Iterator

from agentrl_controller.controller import Controller


def render(controller: Controller) -> str:
    """The state of a controller in Prometheus's text format."""
    return "\n".join([*_lines(controller), ""])


def _lines(controller: Controller) -> Iterator[str]:
    live = Counter((session.task, str(session.state)) for session in controller.sessions.live.values())
    yield "# HELP agentrl_sessions Live sessions by task and state."
    yield "# TYPE agentrl_sessions gauge"
    for (task, state), count in sorted(live.items()):
        yield f'agentrl_sessions{{task="{_escape(task)}",state="{state}"}} {count}'
    yield "# HELP agentrl_sessions_ended_total Sessions that ended, by how."
    yield "# TYPE agentrl_sessions_ended_total counter"
    for state, count in sorted(controller.sessions.ended_count.items()):
        yield f'agentrl_sessions_ended_total{{state="{state}"}} {count}'
    yield "# HELP agentrl_queue_depth Starts that wait for a slot."
    yield "# TYPE agentrl_queue_depth gauge"
    for task in sorted(controller.registry.tasks):
        yield f'agentrl_queue_depth{{task="{_escape(task)}"}} {controller.admission.depth(task)}'
    yield "# HELP agentrl_workers Workers by task and liveness."
    yield "# TYPE agentrl_workers gauge"
    for task, record in sorted(controller.registry.tasks.items()):
        for status, count in sorted(Counter(str(w.status) for w in record.workers.values()).items()):
            yield f'agentrl_workers{{task="{_escape(task)}",status="{status}"}} {count}'


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
