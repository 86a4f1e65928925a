"""Traces of ticks by OpenTelemetry. They are off, and cost nothing, unless `daemon.tracing` is set.

The standard environment variables configure the exporter, such as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_SAMPLER.
The library sends spans from its own thread, and drops spans that it cannot send in time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from importlib.metadata import version
from typing import Any

from autoscaler.daemon.connections import format_error

log = logging.getLogger("autoscaler.daemon.tracing")

FLUSH = 2.0
"""Seconds that sending the last spans may take at shutdown."""

_OFF: AbstractContextManager[None] = nullcontext()
_tracer: Any = None  # one for the process: each span finds its parent by the context it runs in


def span(name: str, cluster: str, **attributes: int) -> AbstractContextManager[None]:
    """A span of a tick, within the span that is open in this context."""
    return _OFF if _tracer is None else _span(name, {"autoscaler.cluster": cluster, **attributes})


@contextmanager
def _span(name: str, attributes: dict[str, Any]) -> Iterator[None]:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415 - belongs to an extra

    # The library would record exceptions unmasked, with any secrets in them.
    ours = {"record_exception": False, "set_status_on_exception": False}
    with _tracer.start_as_current_span(name, attributes=attributes, **ours) as made:
        try:
            yield
        except Exception as error:
            made.set_status(StatusCode.ERROR, format_error(error))
            raise


@asynccontextmanager
async def tracing(*, on: bool) -> AsyncIterator[None]:
    """Trace ticks while the context is open, if `on`."""
    global _tracer  # noqa: PLW0603 - see there
    if not on:
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra

    release = version("reactive-autoscaler")
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({"service.version": release, **({} if named else {"service.name": "autoscaler"})})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer = provider.get_tracer("autoscaler", release)
    try:
        yield
    finally:
        _tracer = None
        try:
            async with asyncio.timeout(FLUSH):
                await asyncio.to_thread(provider.shutdown)
        except TimeoutError:
            log.warning("the last spans are not sent: no answer", extra={"seconds": FLUSH})
