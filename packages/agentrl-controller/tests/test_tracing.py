import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentrl_controller.tracing import Tracing
from agentrl_core import SessionError

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(controller, monkeypatch):
    exporter = InMemorySpanExporter()
    tracing = Tracing(None, processor=SimpleSpanProcessor(exporter))
    monkeypatch.setattr(controller._starts, "_tracing", tracing)
    monkeypatch.setattr(controller._exchanges, "_tracing", tracing)
    return exporter


async def test_a_start_and_an_exchange_are_spans_below_the_callers(controller, make_worker, agent, spans):
    worker = await make_worker(replays=True)
    session_id, _ = await agent.start(trace=TRACE)
    answer, _ = controller.begin_interact(
        session_id, b'{"messages": []}', request_id=None, deadline_s=1.0, trace=TRACE
    )
    await answer
    start, interact = spans.get_finished_spans()
    assert (start.name, interact.name) == ("start_sample", "interact")
    for span, headers in zip((start, interact), (headers for route, _, headers in worker.seen), strict=True):
        assert f"{span.context.trace_id:032x}" == TRACE.split("-")[1]
        assert f"{span.parent.span_id:016x}" == TRACE.split("-")[2]
        assert span.attributes == {"task": "task", "session": str(session_id), "worker": worker.address}
        # The worker's own spans go below this one.
        assert headers["traceparent"].split("-")[2] == f"{span.context.span_id:016x}"


async def test_a_failure_is_marked(make_worker, agent, spans):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.fail["interact"] = (500, "broken")
    with pytest.raises(SessionError):
        await agent.interact(session_id)
    span = spans.get_finished_spans()[-1]
    assert (span.status.is_ok, "broken" in span.status.description) == (False, True)
    assert span.parent is None


async def test_without_a_place_for_them_there_are_none(make_worker, agent):
    worker = await make_worker()
    await agent.start(trace=TRACE)
    assert "traceparent" not in worker.seen[-1][2]
    assert not Tracing(None).is_on
