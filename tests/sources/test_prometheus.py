"""The source `prometheus`: its readings from good and bad answers, and its requests."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    RefusedError,
    Secret,
    UnavailableError,
)
from autoscaler.sources.prometheus import Prometheus, Query
from autoscaler.testing.contracts import LocalShared
from tests.sources.prometheus_server import EVALUATED, NOW, Authority, Stub, at, raw, read, stub, vector

LAG = "sum by (cluster) (lag)"


@pytest.fixture
async def server() -> AsyncIterator[Stub]:
    async with stub() as running:
        yield running


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ca"))


async def test_a_duplicate_key_is_an_error(server: Stub) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        result = '{"metric": {}, "value": [1767225600, "1"], "value": [1767225600, "1000"]}'
        text = '{"status": "success", "data": {"resultType": "vector", "result": [' + result + "]}}"
        return web.Response(text=text, content_type="application/json")

    server.respond = answer
    with pytest.raises(AnswerError, match="JSON in which the key 'value' appears twice: which value counts"):
        await read(Prometheus(url=server.url), "sum(lag)")


async def test_a_pause_requested_by_a_server_lasts_over_several_ticks(server: Stub) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="busy", headers={"Retry-After": "30"})

    server.respond = answer
    plugin = Prometheus(url=server.url, fresh=timedelta(0))
    async with LocalShared() as shared, plugin.connect(shared) as source:
        for number in range(5):
            with pytest.raises(UnavailableError, match=r"HTTP 503: 'busy'; it asked to wait another \d+ s"):
                await source.collect(Query(query=f"sum(lag{number})"), NOW)
    assert len(server.requests) == 1


class TestValues:
    async def test_one_sample_is_the_reading_as_of_the_evaluation(self, server: Stub) -> None:
        server.answers = {"sum(lag)": vector(({}, "12.5"))}
        reading = await read(Prometheus(url=server.url), "sum(lag)")
        assert (reading.value, reading.at) == (12.5, at(EVALUATED))
        assert server.queries == ["sum(lag)"]

    @pytest.mark.parametrize(
        ("query", "seconds"),
        [
            ("sum(rate(records_total[1m]))", 60),
            ("sum by (cluster) (increase(records_total{job='a'}[1m30s])) / 90", 90),
            ("avg_over_time(load[ 500ms ])", 0.5),
            ("sum(rate(in_total[2m])) + sum(rate(also_in_total[2m]))", 120),
            ("sum(rate(in_total[1m])) + sum(rate(also_in_total[2m]))", 0),  # which of them?
            ("sum(irate(records_total[1m]))", 0),  # only the last two samples
            ("max_over_time(load[5m])", 0),
            ("avg_over_time(rate(records_total[1m])[5m:15s])", 0),
            ("sum(lag)", 0),
        ],
    )
    async def test_a_reading_has_the_span_of_its_mean(self, server: Stub, query: str, seconds: float) -> None:
        server.answers = {query: vector(({}, "12.5"))}
        assert (await read(Prometheus(url=server.url), query)).over == timedelta(seconds=seconds)

    async def test_a_plain_selector_has_the_age_of_its_sample(self, server: Stub) -> None:
        labels = {"job": "a", "instance": "b"}
        server.answers = {
            'lag{job="a"}': vector(({"__name__": "lag", **labels}, "7")),
            'timestamp(lag{job="a"})': vector((labels, str(EVALUATED - 40))),
        }
        reading = await read(Prometheus(url=server.url), 'lag{job="a"}')
        assert (reading.value, reading.at) == (7.0, at(EVALUATED - 40))
        # at the very instant of the first answer: the two samples belong together whatever arrives in between
        assert [request.get("time") for request in server.requests] == [None, str(EVALUATED)]

    @pytest.mark.parametrize("age", [None, "age"])
    @pytest.mark.parametrize("own", [EVALUATED - 7200, EVALUATED + 7200])
    async def test_an_answer_hours_old_or_in_the_future_counts_by_its_own_time(
        self, server: Stub, own: float, age: str | None
    ) -> None:
        fresh = vector(({}, str(EVALUATED - 5)))
        server.answers = {"lag": vector(({}, "7"), at=own), "timestamp(lag)": fresh, "age": fresh}
        reading = await read(Prometheus(url=server.url), Query(query="lag", age=age))
        assert reading.at == at(own)

    async def test_each_cluster_of_a_fan_out_has_the_age_of_its_own_sample(self, server: Stub) -> None:
        server.answers = {
            "lag": vector(({"__name__": "lag", "c": "a"}, "1"), ({"__name__": "lag", "c": "b"}, "2")),
            "timestamp(lag)": vector(({"c": "b"}, str(EVALUATED - 9)), ({"c": "a"}, str(EVALUATED - 3))),
        }
        async with LocalShared() as shared, Prometheus(url=server.url).connect(shared) as source:
            assert (await source.collect(Query(query="lag", match={"c": "a"}), NOW)).at == at(EVALUATED - 3)
            assert (await source.collect(Query(query="lag", match={"c": "b"}), NOW)).at == at(EVALUATED - 9)

    async def test_age_by_expression_uses_the_oldest_of_the_cluster(self, server: Stub) -> None:
        server.answers = {
            LAG: vector(({"cluster": "a"}, "1"), ({"cluster": "b"}, "2")),
            "timestamp(lag)": vector(
                ({"cluster": "a", "topic": "x"}, str(EVALUATED - 5)),
                ({"cluster": "a", "topic": "y"}, str(EVALUATED - 8)),
                ({"cluster": "b", "topic": "y"}, str(EVALUATED - 99)),
            ),
        }
        reading = await read(Prometheus(url=server.url), Query(query=LAG, match={"cluster": "a"}, age="timestamp(lag)"))
        assert (reading.value, reading.at) == (1.0, at(EVALUATED - 8))

    async def test_age_may_be_a_scalar(self, server: Stub) -> None:
        scalar = {"resultType": "scalar", "result": [EVALUATED, "1767225000"]}
        server.answers = {"sum(lag)": vector(({}, "3")), "a": {"status": "success", "data": scalar}}
        reading = await read(Prometheus(url=server.url), Query(query="sum(lag)", age="a"))
        assert reading.at == at(1_767_225_000)

    @pytest.mark.parametrize("age", [vector(), vector(({}, "NaN")), vector(({}, "1e300")), vector(({}, "x"))])
    async def test_an_unknown_age_is_an_error(self, server: Stub, age: object) -> None:
        server.answers = {"sum(lag)": vector(({}, "3")), "age": age}
        with pytest.raises(AnswerError, match="time is"):
            await read(Prometheus(url=server.url), Query(query="sum(lag)", age="age"))

    async def test_a_scalar_is_a_number(self, server: Stub) -> None:
        scalar = {"resultType": "scalar", "result": [EVALUATED, "4"]}
        server.answers = {"2 + 2": {"status": "success", "data": scalar}}
        assert (await read(Prometheus(url=server.url), "2 + 2")).value == 4.0

    @pytest.mark.parametrize(
        ("many", "value"),
        [("sum", 7.5), ("mean", 2.5), ("max", 4.0), ("min", 1.0), ("each", (4.0, 1.0, 2.5))],
    )
    async def test_several_samples_are_combined_by_the_rule(self, server: Stub, many: str, value: object) -> None:
        replicas = [({"pod": "b"}, "1"), ({"pod": "c"}, "2.5"), ({"pod": "a"}, "4")]
        ages = [({"pod": pod}, str(EVALUATED - n)) for n, pod in enumerate("abc")]
        server.answers = {"busy": vector(*replicas), "timestamp(busy)": vector(*ages)}
        reading = await read(Prometheus(url=server.url), Query(query="busy", many=many))  # type: ignore[arg-type]
        assert (reading.value, reading.at) == (value, at(EVALUATED - 2))

    async def test_each_gives_a_tuple_even_for_one_sample(self, server: Stub) -> None:
        server.answers = {"a + b": vector(({}, "1"))}
        assert (await read(Prometheus(url=server.url), Query(query="a + b", many="each"))).value == (1.0,)  # type: ignore[arg-type]

    async def test_several_samples_are_an_error_by_default(self, server: Stub) -> None:
        server.answers = {"a + b": vector(({"pod": "a"}, "1"), ({"pod": "b"}, "2"))}
        with pytest.raises(AnswerError, match="2 samples, expected one"):
            await read(Prometheus(url=server.url), "a + b")

    async def test_no_sample_is_an_error_by_default(self, server: Stub) -> None:
        server.answers = {"lag": vector()}
        with pytest.raises(AnswerError, match="no sample among 0"):
            await read(Prometheus(url=server.url), "lag")

    async def test_a_cluster_without_a_sample_in_a_fan_out_is_an_error(self, server: Stub) -> None:
        server.answers = {LAG: vector(({"cluster": "a"}, "1"))}
        with pytest.raises(AnswerError, match="no sample for cluster='z' among 1"):
            await read(Prometheus(url=server.url), Query(query=LAG, match={"cluster": "z"}))

    async def test_no_sample_is_zero_only_on_request(self, server: Stub) -> None:
        server.answers = {"lag": vector()}
        reading = await read(Prometheus(url=server.url), Query(query="lag", empty="zero"))  # type: ignore[arg-type]
        assert (reading.value, reading.at) == (0.0, NOW)

    async def test_a_missing_label_counts_as_empty(self, server: Stub) -> None:
        server.answers = {LAG: vector(({"cluster": "a"}, "1"), ({"cluster": "a", "zone": "x"}, "2"))}
        reading = await read(Prometheus(url=server.url), Query(query=LAG, match={"cluster": "a", "zone": ""}))
        assert reading.value == 1.0

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "Inf", "many", "", None, True, [1], 10**400])
    async def test_a_value_that_is_not_a_finite_number_is_an_error_for_its_cluster_only(
        self, server: Stub, value: Any
    ) -> None:
        server.answers = {LAG: vector(({"cluster": "a"}, value), ({"cluster": "b"}, "2"))}
        async with LocalShared() as shared, Prometheus(url=server.url).connect(shared) as source:
            with pytest.raises(AnswerError, match="expected a finite number"):
                await source.collect(Query(query=LAG, match={"cluster": "a"}), NOW)
            assert (await source.collect(Query(query=LAG, match={"cluster": "b"}), NOW)).value == 2.0

    async def test_a_sum_that_overflows_is_an_error(self, server: Stub) -> None:
        server.answers = {"a + b": vector(({"c": "1"}, "1.5e308"), ({"c": "2"}, "1.5e308"))}
        with pytest.raises(AnswerError, match="finite"):
            await read(Prometheus(url=server.url), Query(query="a + b", many="sum"))  # type: ignore[arg-type]

    async def test_a_histogram_is_an_error(self, server: Stub) -> None:
        sample = {"metric": {}, "histogram": [EVALUATED, {"count": "1"}]}
        server.answers = {"h + h": {"status": "success", "data": {"resultType": "vector", "result": [sample]}}}
        with pytest.raises(AnswerError, match="a histogram"):
            await read(Prometheus(url=server.url), "h + h")


@pytest.mark.parametrize(
    ("query", "plain"),
    [
        ("lag", True),
        ("job:lag:rate5m", True),
        (" lag ", True),
        ("lag{}", True),
        ('lag{topic="a"}', True),
        ("lag{topic='a', group=~`b|c`,}", True),
        (r'lag{topic="a\"} + up{x=\"",}', True),
        ('lag { a != "x" , b !~ "y" }', True),
        ("lag[5m]", False),
        ("sum(lag)", False),
        ("lag + lag", False),
        ("lag offset 5m", False),
        ('lag{a="b"} or up', False),
        ('{__name__=~"a|b"}', False),
        ("lag{a=b}", False),
        ('lag{a="b}', False),
        ("NaN", False),
        ("inf", False),
        ("5", False),
        ("lag # comment", False),
    ],
)
def test_a_plain_selector_is_distinguished_from_other_expressions(query: str, *, plain: bool) -> None:
    assert Query(query=query).asked.age == (f"timestamp({query.strip()})" if plain else None)


class TestFanOut:
    async def test_many_clusters_share_one_request(self, server: Stub) -> None:
        names = [f"c{n}" for n in range(200)]
        server.answers = {LAG: vector(*(({"cluster": name}, str(n)) for n, name in enumerate(names)))}
        async with LocalShared() as shared, Prometheus(url=server.url).connect(shared) as source:
            readings = await asyncio.gather(
                *(source.collect(Query(query=LAG, match={"cluster": name}), NOW) for name in names)
            )
        assert [reading.value for reading in readings] == list(range(200))
        assert server.queries == [LAG]

    async def test_an_answer_is_reused_while_fresh(self, server: Stub) -> None:
        server.answers = {LAG: vector(({"cluster": "a"}, "1"))}
        plugin = Prometheus(url=server.url, fresh=timedelta(minutes=1))
        async with LocalShared() as shared, plugin.connect(shared) as source:
            for _ in range(3):
                assert (await source.collect(Query(query=LAG, match={"cluster": "a"}), NOW)).value == 1.0
        assert len(server.requests) == 1

    async def test_an_answer_that_is_no_longer_fresh_is_requested_again(self, server: Stub) -> None:
        server.answers = {LAG: vector(({"cluster": "a"}, "1"))}
        plugin, query = (
            Prometheus(url=server.url, fresh=timedelta(seconds=0.1)),
            Query(query=LAG, match={"cluster": "a"}),
        )
        async with LocalShared() as shared, plugin.connect(shared) as source, asyncio.timeout(60):
            await source.collect(query, NOW)
            server.answers = {LAG: vector(({"cluster": "a"}, "2"))}
            while (await source.collect(query, NOW)).value != 2.0:  # noqa: ASYNC110 - it depends on time alone
                await asyncio.sleep(0.01)
        assert len(server.requests) == 2

    async def test_a_failure_is_shared_too(self, server: Stub) -> None:
        async def broken(_: web.Request) -> web.Response:
            return web.Response(status=503, text="no")

        server.respond = broken
        plugin = Prometheus(url=server.url, attempts=1)
        async with LocalShared() as shared, plugin.connect(shared) as source:
            queries = [Query(query=LAG, match={"cluster": str(n)}) for n in range(50)]
            errors = await asyncio.gather(*(source.collect(q, NOW) for q in queries), return_exceptions=True)
        assert {type(error) for error in errors} == {UnavailableError}
        assert len(set(map(id, errors))) == 50
        assert len(server.requests) == 1

    async def test_a_cancelled_caller_does_not_cancel_the_others(self, server: Stub) -> None:
        asked, go = asyncio.Event(), asyncio.Event()

        async def later(_: web.Request) -> web.Response:
            asked.set()
            await go.wait()
            return web.json_response(vector(({}, "1")))

        server.respond = later
        async with LocalShared() as shared, Prometheus(url=server.url).connect(shared) as source:
            first = asyncio.create_task(source.collect(Query(query="a + b"), NOW))
            second = asyncio.create_task(source.collect(Query(query="a + b"), NOW))
            await asked.wait()
            first.cancel()
            await asyncio.wait((first,))
            go.set()
            assert (await second).value == 1.0
        assert len(server.requests) == 1

    async def test_a_caller_waiting_when_the_source_is_closed_gets_an_error(self, server: Stub) -> None:
        asked = asyncio.Event()

        async def never(_: web.Request) -> web.Response:
            asked.set()
            await asyncio.Event().wait()
            return web.Response()

        server.respond = never
        async with LocalShared() as shared:
            async with Prometheus(url=server.url).connect(shared) as source:
                waiting = asyncio.create_task(source.collect(Query(query="a + b"), NOW))
                await asked.wait()
            with pytest.raises(UnavailableError, match="closed"):
                await waiting

    async def test_plug_ins_that_differ_only_in_timeouts_share_the_client(self, server: Stub) -> None:
        entered: list[object] = []

        class Counting(LocalShared):
            async def enter(self, key: Any, factory: Any) -> Any:
                entered.append(key)
                return await super().enter(key, factory)

        plugin = Prometheus(url=server.url)
        other = replace(plugin, fresh=timedelta(0), timeout=timedelta(seconds=1))
        async with Counting() as shared, plugin.connect(shared), other.connect(shared):
            assert len(set(entered)) == 1
        assert plugin != other


class TestAsking:
    async def test_an_unavailable_server_is_retried(self, server: Stub) -> None:
        async def once_broken(_: web.Request) -> web.Response:
            if len(server.requests) == 1:
                return web.Response(status=503)
            return web.json_response(vector(({}, "1")))

        server.respond = once_broken
        assert (await read(Prometheus(url=server.url), "a + b")).value == 1.0
        assert len(server.requests) == 2

    async def test_the_number_of_attempts_is_limited(self, server: Stub) -> None:
        async def broken(_: web.Request) -> web.Response:
            return web.Response(status=500)

        server.respond = broken
        with pytest.raises(UnavailableError, match="HTTP 500"):
            await read(Prometheus(url=server.url, attempts=2), "a + b")
        assert len(server.requests) == 2

    async def test_a_bad_query_is_not_retried(self, server: Stub) -> None:
        async def bad(_: web.Request) -> web.Response:
            said = {"status": "error", "errorType": "bad_data", "error": "1:4: parse error: unclosed paren"}
            return web.json_response(said, status=400)

        server.respond = bad
        with pytest.raises(AnswerError, match=r"query 'sum\(': HTTP 400: .*unclosed paren"):
            await read(Prometheus(url=server.url), "sum(")
        assert len(server.requests) == 1

    async def test_bearer_token_and_headers_are_sent(self, server: Stub) -> None:
        server.answers = {"a + b": vector(({}, "1"))}
        headers = {"X-Scope-OrgID": "team"}
        await read(Prometheus(url=server.url, token=Secret("s3cret"), headers=headers), "a + b")
        assert server.headers[0]["Authorization"] == "Bearer s3cret"
        assert server.headers[0]["X-Scope-OrgID"] == "team"

    async def test_user_and_password_are_sent_and_override_netrc(
        self, server: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        netrc = tmp_path / "netrc"
        netrc.write_text("machine 127.0.0.1 login other password wrong\n")
        monkeypatch.setenv("NETRC", str(netrc))
        server.answers = {"a + b": vector(({}, "1"))}
        await read(Prometheus(url=server.url, username="zoë", password=Secret("päss:word")), "a + b")
        expected = base64.b64encode("zoë:päss:word".encode()).decode()
        assert server.headers[0]["Authorization"] == f"Basic {expected}"

    async def test_a_hanging_server_delays_no_other(self, server: Stub) -> None:
        hung = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            hung.set()
            await reader.read()

        server.answers = {"a + b": vector(({}, "1"))}
        async with raw(hang) as url, LocalShared() as shared:
            slow = Prometheus(url=url, connections=1, timeout=timedelta(seconds=1))
            async with slow.connect(shared) as stuck, Prometheus(url=server.url).connect(shared) as source:
                tasks = [asyncio.create_task(stuck.collect(Query(query=f"a + {n}"), NOW)) for n in range(20)]
                await hung.wait()
                async with asyncio.timeout(0.9):
                    assert (await source.collect(Query(query="a + b"), NOW)).value == 1.0
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {EdgeTimeoutError}


def html(status: int = 200) -> web.Response:
    return web.Response(status=status, content_type="text/html", text="<html>Please log in</html>")


class TestBadAnswers:
    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (301, AnswerError),
            (400, AnswerError),
            (401, RefusedError),
            (403, RefusedError),
            (404, RefusedError),
            (405, AnswerError),
            (408, UnavailableError),
            (422, AnswerError),
            (429, UnavailableError),
            (500, UnavailableError),
            (502, UnavailableError),
            (503, UnavailableError),
        ],
    )
    async def test_the_meaning_of_each_status(self, server: Stub, status: int, kind: type[EdgeError]) -> None:
        async def answer(_: web.Request) -> web.Response:
            response = html(status)
            if status == 301:
                response.headers["Location"] = "https://login.example/?token=abc"
            return response

        server.respond = answer
        with pytest.raises(EdgeError) as caught:
            await read(Prometheus(url=server.url, attempts=1), "a + b")
        assert type(caught.value) is kind
        message = str(caught.value)
        assert message.startswith(f"prometheus {server.url}: query 'a + b': HTTP {status}")
        assert ("login.example" if status == 301 else "Please log in") in message

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("<html><title>Sign in</title>", "that begins with '<html><title>Sign in"),
            ("", "not JSON"),
            ('{"status":"success","data":{"resultType":"vector","result":[{"me', "not JSON but text/html"),
            ("[" * 200_000, "not JSON"),
            ("[]", "not an answer of Prometheus"),
            ("null", "not an answer of Prometheus"),
            ('{"status":"success"}', "not an answer of Prometheus"),
            ('{"status":"error","error":"out of luck"}', "out of luck"),
            ('{"status":"success","data":{}}', "result is a 'None'"),
            ('{"status":"success","data":{"resultType":"vector"}}', "result is a 'vector'"),
            ('{"status":"success","data":{"resultType":"vector","result":{}}}', "neither a vector"),
            ('{"status":"success","data":{"resultType":"vector","result":[1]}}', "without metric and value"),
            ('{"status":"success","data":{"resultType":"vector","result":[{"metric":{}}]}}', "without metric"),
            ('{"status":"success","data":{"resultType":"matrix","result":[]}}', "result is a 'matrix'"),
            ('{"status":"success","data":{"resultType":"string","result":[1,"5"]}}', "result is a 'string'"),
            ('{"status":"success","data":{"resultType":"scalar","result":[1,"NaN"]}}', "'NaN'"),
        ],
    )
    async def test_an_unusable_body_is_an_error(self, server: Stub, body: str, message: str) -> None:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(text=body, content_type="text/html")

        server.respond = answer
        with pytest.raises(AnswerError) as caught:
            await read(Prometheus(url=server.url), "a + b")
        assert message in str(caught.value)
        assert "query 'a + b'" in str(caught.value)
        assert len(str(caught.value)) < 500
        assert len(server.requests) == 1

    async def test_an_answer_with_warnings_is_refused_or_accepted_as_configured(self, server: Stub) -> None:
        server.answers = {"a + b": vector(({}, "1")) | {"warnings": ["store east: unavailable"]}}
        with pytest.raises(AnswerError, match="store east: unavailable"):
            await read(Prometheus(url=server.url), "a + b")
        reading = await read(Prometheus(url=server.url, warnings="ignore"), "a + b")  # type: ignore[arg-type]
        assert reading.value == 1.0

    async def test_a_note_is_not_a_warning(self, server: Stub) -> None:
        server.answers = {"a + b": vector(({}, "1")) | {"warnings": ["PromQL info: metric might not be a counter"]}}
        assert (await read(Prometheus(url=server.url), "a + b")).value == 1.0

    async def test_an_answer_of_100_megabytes_is_not_read(self, server: Stub) -> None:
        sent = 0

        async def endless(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            response = web.StreamResponse()
            await response.prepare(request)
            piece = b" " * 1_000_000
            for _ in range(100):
                await response.write(piece)
                sent += len(piece)
            return response

        server.respond = endless
        with pytest.raises(AnswerError, match="more than 16,000,000 bytes"):
            await read(Prometheus(url=server.url), "a + b")
        assert sent < 40_000_000  # the rest was in the buffers of the sockets

    async def test_compressed_answers_are_not_decompressed(self, server: Stub) -> None:
        async def compressed(_: web.Request) -> web.Response:
            response = web.json_response(vector(({}, "1")))
            response.enable_compression(web.ContentCoding.gzip)
            return response

        server.respond = compressed
        with pytest.raises(AnswerError, match="not JSON"):
            await read(Prometheus(url=server.url), "a + b")
        assert server.headers[0]["Accept-Encoding"] == "identity"

    @pytest.mark.parametrize("tls", [False, True])
    @pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
    async def test_a_slow_answer_is_aborted_and_its_thread_freed(
        self, head: bytes, authority: Authority, *, tls: bool
    ) -> None:
        cut = asyncio.Event()
        drops = 0

        async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal drops
            try:
                writer.write(head or b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while True:
                    drops += 1
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            finally:
                cut.set()

        async with raw(drip, authority.context() if tls else None) as url, LocalShared() as shared:
            plugin = Prometheus(
                url=url, timeout=timedelta(seconds=0.4), connections=1, ca_file=authority.ca if tls else None
            )
            async with plugin.connect(shared) as source:
                with pytest.raises(EdgeTimeoutError, match=r"within 0\.4s"):
                    await source.collect(Query(query="a + b"), NOW)
                # The number of bytes in 0.8 s: counted, as on a suspended machine no time passes for either side.
                assert drops < 16
                async with asyncio.timeout(60):
                    await cut.wait()
                assert drops < 16 + 20

    async def test_a_silent_server_times_out_and_is_not_retried(self) -> None:
        connections = 0

        async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.read()

        async with raw(silence) as url:
            with pytest.raises(EdgeTimeoutError, match="no answer"):
                await read(Prometheus(url=url, timeout=timedelta(seconds=0.3)), "a + b")
        assert connections == 1

    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        ],
    )
    async def test_an_incomplete_answer_or_one_that_is_not_http_means_unavailable(self, said: bytes) -> None:
        async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            await writer.drain()

        async with raw(say) as url:
            with pytest.raises(UnavailableError, match="no connection, or it was closed"):
                await read(Prometheus(url=url, attempts=1), "a + b")

    async def test_a_port_without_a_listener_is_unavailable(self, unused_port: int) -> None:
        with pytest.raises(UnavailableError, match="Connection refused"):
            await read(Prometheus(url=f"http://127.0.0.1:{unused_port}"), "a + b")

    async def test_an_unknown_host_name_is_unavailable(self) -> None:
        with pytest.raises(UnavailableError, match=r"prometheus http://nowhere\.invalid:9090: query 'a \+ b'"):
            await read(Prometheus(url="http://nowhere.invalid:9090", timeout=timedelta(seconds=1)), "a + b")


class TestTls:
    async def test_a_certificate_of_the_given_authority_is_trusted(self, authority: Authority) -> None:
        async with stub(authority.context(), answers={"a + b": vector(({}, "1"))}) as server:
            assert (await read(Prometheus(url=server.url, ca_file=authority.ca), "a + b")).value == 1.0

    async def test_an_unknown_authority_is_refused_and_named(self, authority: Authority, tmp_path: Path) -> None:
        other = Authority.make(tmp_path)
        async with stub(authority.context()) as server:
            with pytest.raises(AnswerError, match=f"CERTIFICATE_VERIFY_FAILED.*{other.ca}"):
                await read(Prometheus(url=server.url, ca_file=other.ca), "a + b")
            with pytest.raises(AnswerError, match="trusted by the certifi package"):
                await read(Prometheus(url=server.url), "a + b")

    async def test_verification_can_be_disabled(self, authority: Authority) -> None:
        async with stub(authority.context(), answers={"a + b": vector(({}, "1"))}) as server:
            assert (await read(Prometheus(url=server.url, verify=False), "a + b")).value == 1.0

    @pytest.mark.parametrize("content", [None, "no certificate"])
    async def test_an_unusable_ca_file_is_named(
        self, authority: Authority, tmp_path: Path, content: str | None
    ) -> None:
        file = tmp_path / "broken.pem"
        if content is not None:
            file.write_text(content)
        async with stub(authority.context()) as server:
            with pytest.raises(AnswerError, match=r"broken\.pem"):
                await read(Prometheus(url=server.url, ca_file=file), "a + b")

    async def test_an_unanswered_handshake_times_out(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            url = f"https://127.0.0.1:{mute.getsockname()[1]}"
            # Which of the two timeouts ends it depends on how long the connection took.
            with pytest.raises(EdgeTimeoutError, match=r"no (complete )?answer within"):
                await read(Prometheus(url=url, timeout=timedelta(seconds=0.3)), "a + b")

    async def test_plain_http_where_tls_is_expected_is_an_error(self, server: Stub) -> None:
        with pytest.raises(AnswerError, match="TLS failed"):
            await read(Prometheus(url=server.url.replace("http", "https")), "a + b")


class TestSecrets:
    @pytest.mark.parametrize(
        "credentials",
        [{"token": Secret("hunter2")}, {"username": "ann", "password": Secret("hunter2")}],
    )
    async def test_errors_and_repr_show_no_secrets(self, server: Stub, credentials: dict[str, Any]) -> None:
        async def echo(request: web.Request) -> web.Response:
            return web.Response(status=403, text=f"{request.headers['Authorization']} or hunter2 is wrong")

        server.respond = echo
        plugin = Prometheus(url=server.url, **credentials)
        assert "hunter2" not in repr(plugin)
        with pytest.raises(RefusedError) as caught:
            await read(plugin, "a + b")
        assert "hunter2" not in str(caught.value)
        assert server.headers[0]["Authorization"].split()[1] not in str(caught.value)


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class TestParameters:
    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"url": "prometheus:9090"}, "must be an address such as"),
            ({"url": "ftp://host"}, "must be an address such as"),
            ({"url": "http://"}, "must be an address such as"),
            ({"url": "http://host/?a=b"}, "must be an address such as"),
            ({"url": "http://host:x"}, "must be an address such as"),
            ({"url": "http://ann:hunter2@host"}, "user or password"),
            ({"username": "ann"}, "together"),
            ({"password": Secret("hunter2")}, "together"),
            ({"username": "ann", "password": Secret("hunter2"), "token": Secret("x")}, "together with username"),
            ({"username": "a:b", "password": Secret("hunter2")}, "colon"),
            ({"token": Secret("hunter2\n")}, "line break"),
            ({"token": Secret("")}, "must be ASCII without spaces"),
            ({"token": Secret("hunter2 2")}, "ASCII without spaces"),
            ({"headers": {"authorization": "x"}}, "Authorization"),
            ({"headers": {"a b": "x"}}, "not a valid HTTP header"),
            ({"headers": {"a": "x\r\nb: c"}}, "not a valid HTTP header"),
            ({"ca_file": Path("x"), "verify": False}, "verify"),
            ({"attempts": 0}, "attempts"),
            ({"max_bytes": 0}, "max_bytes"),
            ({"connections": 0}, "connections"),
            ({"connections": 65}, "connections"),
            ({"timeout": timedelta(0)}, "timeout"),
            ({"fresh": timedelta(seconds=-1)}, "fresh"),
            ({"warnings": "perhaps"}, "perhaps"),
        ],
    )
    def test_invalid_parameters_of_a_server_are_refused(self, parameters: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            Prometheus(**{"url": "http://host", **parameters})
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"query": " "}, "query"),
            ({"age": ""}, "age"),
            ({"match": {"a-b": "c"}}, "a-b"),
            ({"many": "all"}, "all"),
            ({"empty": "nothing"}, "nothing"),
        ],
    )
    def test_invalid_parameters_of_a_query_are_refused(self, parameters: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Query(**{"query": "lag", **parameters})

    def test_equal_parameters_in_another_order_are_equal(self) -> None:
        assert Query(query="a", match={"x": "1", "y": "2"}) == Query(query="a", match={"y": "2", "x": "1"})
        assert hash(Query(query="a", match={"x": "1", "y": "2"})) == hash(Query(query="a", match={"y": "2", "x": "1"}))
        assert Query(query="a", match={"x": "1"}) != Query(query="a", match={"x": "2"})
        assert Prometheus(url="http://h/") == Prometheus(url="http://h")
        assert hash(Prometheus(url="http://h/", headers={"a": "b"})) == hash(
            Prometheus(url="http://h", headers={"a": "b"})
        )
