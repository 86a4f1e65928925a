"""Traces of ticks, sent to a receiver of OTLP over HTTP; while tracing is off, nothing is sent."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from autoscaler.config import load
from autoscaler.core.foreign import mask
from autoscaler.daemon.tracing import span, tracing
from autoscaler.ports import ConfigurationError, RefusedError

from .conftest import World

FAST: dict[str, Any] = {"interval": timedelta(milliseconds=200), "timeout": timedelta(milliseconds=100)}


@dataclass
class Collector:
    """A receiver of OTLP.

    Attributes:
        spans: all received spans.
        resources: the attributes of their senders.
        hangs: whether it never answers.
    """

    spans: list[Any] = field(default_factory=list)
    resources: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.hangs:
            await self.released.wait()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources |= {pair.key: pair.value.string_value for pair in sent.resource.attributes}
            for scope in sent.scope_spans:
                self.spans += scope.spans
        return web.Response(content_type="application/x-protobuf")

    def named(self, name: str) -> list[Any]:
        return [each for each in self.spans if each.name == name]


def attributes(found: Any) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in found.attributes}


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    found = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", found.receive)
    async with TestServer(app) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", str(server.make_url("/")).rstrip("/"))
        yield found
        found.released.set()


async def test_a_tick_is_a_trace_with_its_actions_and_its_cluster(collector: Collector) -> None:
    world = World("a", "b", **FAST)
    world.source.values["load"] = 300.0
    async with tracing(on=True):
        await world.start()
        while len(world.store.records) < 8:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        await world.fleet.stop()
    assert collector.resources["service.name"] == "autoscaler"
    ticks = {each.span_id: each for each in collector.named("tick")}
    assert len({each.trace_id for each in ticks.values()}) == len(ticks) >= 8
    assert all(not each.parent_span_id for each in ticks.values())
    for name in ("poll", "decide", "scale"):
        inner = collector.named(name)
        assert {attributes(each)["autoscaler.cluster"] for each in inner} == {"a", "b"}
        for each in inner:
            tick = ticks[each.parent_span_id]
            assert (tick.trace_id, attributes(tick)["autoscaler.cluster"]) == (
                each.trace_id,
                attributes(each)["autoscaler.cluster"],
            )
            assert tick.start_time_unix_nano <= each.start_time_unix_nano <= each.end_time_unix_nano
    assert [attributes(each)["replicas"] for each in collector.named("scale")] == [3, 3]


async def test_a_failed_call_is_an_error_without_its_secrets(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "scaler-of-prod")
    monkeypatch.setattr(mask, "_plain", ["hunter2-hunter2"])
    world = World("a", **FAST)
    world.source.values["load"] = 300.0
    world.targets["a"].scale_failure = RefusedError("password hunter2-hunter2 refused")
    async with tracing(on=True):
        await world.start()
        while not world.targets["a"].requests:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        await world.fleet.stop()
    assert collector.resources["service.name"] == "scaler-of-prod"
    failed = collector.named("scale")[0]
    assert failed.status.message == "password *** refused"
    assert "hunter2" not in str(collector.spans)


async def test_a_hanging_collector_delays_the_shutdown_by_two_seconds_and_no_tick(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.hangs = True
    async with tracing(on=True):
        with span("tick", "a"):
            pass
        begun = time.monotonic()
    assert 1.5 < time.monotonic() - begun < 10
    assert caplog.messages[-1] == "the last spans are not sent: no answer"


def test_while_tracing_is_off_nothing_is_loaded_and_a_span_is_the_same_object_each_time() -> None:
    assert span("tick", "a") is span("poll", "b")
    program = "import sys, autoscaler.daemon.service; sys.exit(any('opentelemetry' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_its_package_tracing_is_refused_with_the_name_of_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "daemon:\n  tracing: true\nclusters:\n  a: {target: {type: advice}, max: 3, policies: {m: {type: schedule}}}\n"
    )
    monkeypatch.setattr(importlib.import_module("autoscaler.config.load"), "is_installed", lambda _: False)
    with pytest.raises(ConfigurationError) as raised:
        load(path, {})
    [problem] = [line for line in raised.value.problems if "daemon" in line]
    assert problem.startswith(f"{path}:2: daemon.tracing: needs OpenTelemetry's SDK and OTLP exporter")
    assert "'.[otel]'" in problem
