"""The discovery `prometheus` against a server whose answers the test sets; tests/integration has a real one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from autoscaler.discoveries.prometheus import Prometheus
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, Member, RefusedError, Secret, UnavailableError
from autoscaler.testing import LocalShared
from tests.sources.prometheus_server import Stub, stub, vector

HTML = "<script>alert('${API_TOKEN}')</script>"


async def found(server: Stub, **more: Any) -> Sequence[Member]:
    plugin = Prometheus(**{"url": server.url, "query": "up", "label": "job", **more})
    async with LocalShared() as shared, plugin.connect(shared) as discovery:
        return await discovery.members()


async def test_members_are_the_values_of_the_label_with_the_labels_that_all_their_samples_share() -> None:
    orders = {"__name__": "up", "job": "orders", "team": "a"}
    samples = ({**orders, "pod": "1"}, "1"), ({"job": "clicks"}, "NaN"), ({**orders, "pod": "2", "zone": "x"}, "0")
    async with stub(answers={"up": vector(*samples)}) as server:
        assert await found(server) == [
            Member("clicks", {"value": "clicks", "labels": {"job": "clicks"}}),
            Member("orders", {"value": "orders", "labels": {"job": "orders", "team": "a"}}),
        ]
        assert len(server.requests) == 1


async def test_no_samples_means_no_members() -> None:
    async with stub(answers={"up": vector()}) as server:
        assert await found(server) == []


async def test_the_error_for_a_sample_without_the_label_names_its_labels() -> None:
    async with stub(answers={"up": vector(({"job": "a"}, "1"), ({"instance": "b", "team": HTML}, "1"))}) as server:
        with pytest.raises(AnswerError, match=r"has no label 'job', but instance, team; .* job!=\"\" in"):
            await found(server)


async def test_values_are_passed_on_unchanged_however_long_or_odd() -> None:
    values = [HTML, "a\x00b\nc", "x" * 65_536]
    async with stub(answers={"up": vector(*(({"job": value}, "1") for value in values))}) as server:
        assert [member.values["value"] for member in await found(server)] == sorted(values)


async def test_ten_thousand_members_are_read() -> None:
    samples = [({"job": f"job-{number}", "instance": "a", "team": "b"}, "1") for number in range(10_000)]
    async with stub(answers={"up": vector(*samples)}) as server:
        assert len(await found(server)) == 10_000


def result(sample: dict[str, Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "vector", "result": [sample]}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({**vector(), "warnings": ["store 10.0.0.1 is down"]}, "so it may be partial: store 10.0.0.1 is down"),
        ({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}, "an instant vector .*resultType"),
        (
            {"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "2"]}]}},
            "metric: Field required",
        ),
        ({"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"job": 1}}]}}, "valid string"),
        ({"status": "error", "error": "out of memory"}, "but status"),
        ([], "an instant vector of Prometheus's API"),
    ],
    ids=["partial", "scalar", "no labels", "a number as label", "error", "a list"],
)
async def test_an_answer_that_is_not_a_complete_vector_is_an_error(answer: Any, message: str) -> None:
    async with stub(answers={"up": answer}) as server:
        with pytest.raises(AnswerError, match=message):
            await found(server)


async def test_notes_on_the_query_are_not_warnings() -> None:
    notes = {"warnings": ["PromQL info: metric might not be a counter"], "infos": ["PromQL info: likewise"]}
    async with stub(answers={"up": {**vector(({"job": "a"}, "1")), **notes}}) as server:
        assert [member.id for member in await found(server)] == ["a"]


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (
            400,
            '{"status":"error","error":"parse error: unclosed"}',
            RefusedError,
            "400 Bad Request: parse error",
        ),
        (401, "", RefusedError, "check the token or password"),
        (503, '{"status":"error","error":"query timed out"}', UnavailableError, "query timed out"),
        (200, "<html>welcome to the proxy</html>", AnswerError, "got '<html>welcome"),
        (200, '{"status":"success","data":{"resul', AnswerError, "expected an instant vector"),
        (302, "", AnswerError, "a login page?"),
    ],
    ids=["wrong query", "401", "503", "html", "cut", "redirect"],
)
async def test_errors_say_what_to_do_and_show_no_secret(
    status: int, body: str, error: type[EdgeError], message: str
) -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers={"Location": "http://login/"})

    async with stub(respond=respond) as server:
        with pytest.raises(error, match=message) as caught:
            await found(server, token=Secret("hunter2"))
    assert "hunter2" not in str(caught.value)


async def test_a_truncated_answer_is_an_error() -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"status":')
        assert request.transport is not None
        request.transport.abort()
        return response

    async with stub(respond=respond) as server:
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await found(server)


async def test_the_timeout_is_sent_to_the_server_and_silence_is_an_error() -> None:
    async with stub(answers={"up": vector()}) as server:
        await found(server, timeout=timedelta(seconds=2), headers={"X-Scope-OrgID": "team"})
        assert server.requests[0]["timeout"] == "1.900"
        assert server.headers[0]["X-Scope-OrgID"] == "team"
    with pytest.raises(EdgeError) as caught:
        await found(Stub(url="http://127.0.0.1:1"))
    assert isinstance(caught.value, UnavailableError)
    assert not isinstance(caught.value, EdgeTimeoutError)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"url": "prometheus:9090"}, "url: must be an address such as"),
        ({"query": " "}, "query: must not be empty"),
        ({"label": "a-b"}, "label: must be the name of a label, not 'a-b'"),
        ({"password": Secret("p")}, "username: must be given together with password"),
        ({"headers": {"Authorization": "Bearer t"}}, "headers: must not contain Authorization: use token"),
        ({"timeout": timedelta(0)}, "timeout: must be above 0s"),
        ({"ca_file": Path("ca.pem"), "url": "http://a"}, None),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], problem: str | None) -> None:
    given = {"url": "http://prometheus:9090", "query": "up", "label": "job", **parameters}
    if problem is None:
        assert Prometheus(**given) == Prometheus(**given)
        return
    with pytest.raises(ValueError, match=problem):
        Prometheus(**given)
