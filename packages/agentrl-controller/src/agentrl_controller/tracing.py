"""OpenTelemetry traces of starts and exchanges, where they are configured."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentrl_core import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

Headers = tuple[tuple[str, str], ...]
"""What carries the trace on to the worker."""


class Tracing:
    """Makes a span of each start and exchange, below the caller's where it sends a `traceparent`.

    Args:
        endpoint: where spans go, such as `http://127.0.0.1:4318`; nowhere without.
        processor: takes the spans instead.

    Raises:
        ConfigError: the `otel` extra is not installed.
    """

    def __init__(self, endpoint: str | None, *, processor: "SpanProcessor | None" = None) -> None:
        self._provider: Any = None
        if endpoint is None and processor is None:
            return
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            message = "`otlp_endpoint` needs OpenTelemetry: install `agentrl-controller[otel]`"
            raise ConfigError(message) from error
        self._provider = TracerProvider(resource=Resource.create({"service.name": "agentrl-controller"}))
        self._provider.add_span_processor(processor or _exporter(str(endpoint)))
        self._tracer = self._provider.get_tracer("agentrl_controller")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, name: str, parent: str | None, **attributes: str | int) -> Iterator[Headers]:
        """A span around what is done in it; yields the headers that carry it on. An error marks it."""
        if self._provider is None:
            yield ()
            return
        context = self._propagator.extract({"traceparent": parent} if parent else {})
        with self._tracer.start_as_current_span(name, context=context, attributes=attributes):
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            yield tuple(carrier.items())

    @property
    def is_on(self) -> bool:
        """Whether spans go anywhere."""
        return self._provider is not None

    def close(self) -> None:
        """Send what is left."""
        if self._provider is not None:
            self._provider.shutdown()


def _exporter(endpoint: str) -> "SpanProcessor":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))
