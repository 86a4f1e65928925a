"""The source `cloudwatch` against moto over HTTP, and against answers that moto does not give."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from autoscaler.config import load
from autoscaler.core.model import Reading
from autoscaler.ports import (
    AnswerError,
    ConfigurationError,
    EdgeError,
    EdgeTimeoutError,
    RefusedError,
    UnavailableError,
)
from autoscaler.sources import cloudwatch
from autoscaler.sources.cloudwatch import CloudWatch, Query, Source
from autoscaler.testing.contracts import LocalShared
from tests.clients.aws_server import REGION, Forward, Proxy, until

pytest_plugins = ("tests.clients.aws_fixtures",)

GET = "GetMetricData"
NOW = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
START = NOW.replace(second=0) - MINUTE  # of the last complete period
LAG = Query(metric="Lag", namespace="Test", stat="Maximum")
Result = dict[str, Any]


@pytest.fixture
def plugin(proxy: Proxy) -> CloudWatch:
    return CloudWatch(region=REGION, endpoint_url=proxy.url, timeout=timedelta(seconds=9))


@asynccontextmanager
async def connected(plugin: CloudWatch) -> AsyncIterator[Source]:
    async with LocalShared() as shared, plugin.connect(shared) as source:
        yield source


async def collected(plugin: CloudWatch, query: Query, now: datetime = NOW) -> Reading:
    async with connected(plugin) as source:
        return await source.collect(query, now)


def answer(proxy: Proxy, make: Callable[[Result], list[Result] | Result], **rest: Any) -> None:
    """GetMetricData answers each query with the result of `make`."""

    async def spoil(request: web.Request, _: Forward) -> web.Response:
        results = []
        for query in json.loads(await request.read())["MetricDataQueries"]:
            made = make(query)
            results += made if isinstance(made, list) else [made]
        return sent({"MetricDataResults": results, **rest})

    proxy.rule(GET, spoil, None)


def sent(document: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(document), status=status, content_type="application/x-amz-json-1.0")


def points(query: Result, *values: tuple[datetime, float], status: str = "Complete", label: str = "l") -> Result:
    return {
        "Id": query["Id"],
        "Label": label,
        "Timestamps": [at.timestamp() for at, _ in values],
        "Values": [value for _, value in values],
        "StatusCode": status,
    }


# ----------------------------------------------------------------------------------------------------------
# readings


async def test_a_metric_is_read_from_moto_and_dated_to_the_end_of_its_period(proxy: Proxy, plugin: CloudWatch) -> None:
    namespace = f"Test/{secrets.token_hex(4)}"
    for value, shard in ((7.0, "a"), (9.0, "a"), (99.0, "b")):
        datum = {
            "MetricName": "Lag",
            "Value": value,
            "Timestamp": START + timedelta(seconds=20),
            "Dimensions": [{"Name": "Shard", "Value": shard}],
        }
        proxy.moto.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=[datum])
    async with connected(plugin) as source:
        query = Query(metric="Lag", namespace=namespace, dimensions={"Shard": "a"}, stat="Maximum")
        assert await source.collect(query, NOW) == Reading(9.0, START + MINUTE)
        query = Query(metric="Lag", namespace=namespace, dimensions={"Shard": "a"}, stat="Sum", scale=0.5)
        assert await source.collect(query, NOW) == Reading(8.0, START + MINUTE)


async def test_the_current_period_is_ignored(proxy: Proxy, plugin: CloudWatch) -> None:
    answer(proxy, lambda query: points(query, (START + MINUTE, 1.0), (START, 5.0), (START - MINUTE, 4.0)))
    assert await collected(plugin, LAG) == Reading(5.0, START + MINUTE)


async def test_a_delay_skips_the_period_that_may_still_get_late_values(proxy: Proxy, plugin: CloudWatch) -> None:
    answer(proxy, lambda query: points(query, (START, 5.0), (START - MINUTE, 4.0)))
    query = Query(metric="Lag", namespace="Test", stat="Maximum", delay=MINUTE)
    assert await collected(plugin, query) == Reading(4.0, START)


async def test_the_request_contains_what_was_configured(proxy: Proxy, plugin: CloudWatch) -> None:
    answer(proxy, lambda query: points(query, (START - timedelta(minutes=4), 5.0)))
    five = timedelta(minutes=5)
    stream = {"StreamName": "orders"}
    query = Query(
        metric="GetRecords.IteratorAgeMilliseconds", namespace="AWS/Kinesis", dimensions=stream, stat="p99", period=five
    )
    await collected(plugin, query)
    asked = proxy.made(GET)[0].parameters
    assert asked["MetricDataQueries"] == [
        {
            "Id": "q0",
            "MetricStat": {
                "Metric": {
                    "Namespace": "AWS/Kinesis",
                    "MetricName": "GetRecords.IteratorAgeMilliseconds",
                    "Dimensions": [{"Name": "StreamName", "Value": "orders"}],
                },
                "Period": 300,
                "Stat": "p99",
            },
            "ReturnData": True,
        }
    ]
    assert asked["EndTime"] == NOW.timestamp()
    assert asked["StartTime"] == datetime(2026, 11, 21, 11, 35, tzinfo=UTC).timestamp()


async def test_an_expression_is_sent_unchanged(proxy: Proxy, plugin: CloudWatch) -> None:
    answer(proxy, lambda query: points(query, (START, 12.0)))
    query = Query(expression="SUM(SEARCH('{AWS/Kafka,Topic} MetricName=\"SumOffsetLag\"', 'Maximum', 60))")
    assert (await collected(plugin, query)).value == 12.0
    assert proxy.made(GET)[0].parameters["MetricDataQueries"][0]["Expression"] == query.expression


# ----------------------------------------------------------------------------------------------------------
# missing values


@pytest.mark.parametrize(
    ("results", "error", "message"),
    [
        (points, AnswerError, "no datapoint of the last 7 minutes"),
        (lambda query: points(query, (START + MINUTE, 1.0)), AnswerError, "no datapoint"),
        (lambda _: [], AnswerError, "no result"),
        (lambda q: [points(q, (START, 1.0), label=label) for label in "ab"], AnswerError, r"2 series.*SUM"),
        (lambda query: points(query, (START, 1.0), status="PartialData"), UnavailableError, "only in part"),
        (lambda query: points(query, (START, 1.0), status="InternalError"), UnavailableError, "InternalError"),
        (lambda query: points(query, status="Forbidden"), RefusedError, "access is denied"),
    ],
)
async def test_an_unreadable_metric_is_an_error_and_never_zero(
    proxy: Proxy,
    plugin: CloudWatch,
    results: Callable[[Result], list[Result] | Result],
    error: type[EdgeError],
    message: str,
) -> None:
    answer(proxy, results)
    with pytest.raises(error, match=message) as caught:
        await collected(plugin, LAG)
    assert "CloudWatch in us-east-1: Maximum of Test Lag" in str(caught.value)


async def test_series_of_the_same_name_are_an_error(proxy: Proxy, plugin: CloudWatch) -> None:
    answer(proxy, lambda query: [points(query, (START, 1.0)), points(query, (START, 9.0))])
    with pytest.raises(AnswerError, match=r"several series.*SUM"):
        await collected(plugin, LAG)


async def test_a_value_that_is_not_a_number_is_an_error(proxy: Proxy, plugin: CloudWatch) -> None:
    answer(proxy, lambda query: points(query, (START, math.nan)))
    with pytest.raises(AnswerError, match=r"value is nan|cannot be read"):
        await collected(plugin, LAG)


async def test_a_partial_series_is_completed_by_its_next_page(proxy: Proxy, plugin: CloudWatch) -> None:
    pages = iter((("PartialData", START - MINUTE, 4.0, {"NextToken": "more"}), ("Complete", START, 5.0, {})))

    async def spoil(request: web.Request, _: Forward) -> web.Response:
        query = json.loads(await request.read())["MetricDataQueries"][0]
        status, at, value, rest = next(pages)
        return sent({"MetricDataResults": [points(query, (at, value), status=status)], **rest})

    proxy.rule(GET, spoil, None)
    assert await collected(plugin, LAG) == Reading(5.0, START + MINUTE)
    assert [call.parameters.get("NextToken") for call in proxy.made(GET)] == [None, "more"]


async def test_a_missing_permission_is_named(proxy: Proxy, plugin: CloudWatch) -> None:
    proxy.error(GET, "AccessDenied", "not authorized", 403, times=None)
    with pytest.raises(RefusedError, match="allow the action cloudwatch:GetMetricData on \\*"):
        await collected(plugin, LAG)


async def test_throttling_is_retried(proxy: Proxy, plugin: CloudWatch) -> None:
    proxy.error(GET, "Throttling")
    answer(proxy, lambda query: points(query, (START, 5.0)))
    assert (await collected(plugin, LAG)).value == 5.0


async def test_a_server_that_does_not_answer_times_out(proxy: Proxy) -> None:
    proxy.stall(GET, 30, times=None)
    plugin = CloudWatch(region=REGION, endpoint_url=proxy.url, timeout=timedelta(seconds=0.5))
    with pytest.raises(EdgeTimeoutError):
        await collected(plugin, LAG)


async def test_a_caller_waiting_when_the_source_is_closed_gets_an_error(proxy: Proxy, plugin: CloudWatch) -> None:
    proxy.stall(GET, 30, times=None)
    async with connected(plugin) as source:
        task = asyncio.create_task(source.collect(LAG, NOW))
        await until(lambda: proxy.made(GET))
    with pytest.raises(UnavailableError, match="closed"):
        await task


# ----------------------------------------------------------------------------------------------------------
# number of requests


async def test_metrics_read_together_need_one_request_per_five_hundred(proxy: Proxy, plugin: CloudWatch) -> None:
    answer(proxy, lambda query: points(query, (START, 5.0)))
    async with connected(plugin) as source:
        queries = [Query(metric=f"m{number}", namespace="Test") for number in range(1200)]
        readings = await asyncio.gather(*(source.collect(query, NOW) for query in queries))
    assert {reading.value for reading in readings} == {5.0}
    assert sorted(len(call.parameters["MetricDataQueries"]) for call in proxy.made(GET)) == [200, 500, 500]


async def test_a_query_is_sent_once_per_period_whoever_reads_it(proxy: Proxy, plugin: CloudWatch) -> None:
    answer(proxy, lambda query: points(query, (START, 5.0)))
    async with connected(plugin) as source:
        for scale in (1.0, 1.0, 0.001):
            await source.collect(Query(metric="Lag", namespace="Test", stat="Maximum", scale=scale), NOW)
        assert len(proxy.made(GET)) == 1


async def test_after_its_period_a_query_is_sent_again_together_with_others(proxy: Proxy) -> None:
    answer(proxy, lambda query: points(query, (START, 5.0)))
    plugin = CloudWatch(region=REGION, endpoint_url=proxy.url, timeout=timedelta(seconds=9), fresh=timedelta(0))
    async with connected(plugin) as source:
        other = Query(metric="Other", namespace="Test")
        await source.collect(other, NOW)
        await source.collect(LAG, NOW)
        await source.collect(LAG, NOW)
    assert [len(call.parameters["MetricDataQueries"]) for call in proxy.made(GET)] == [1, 2, 2]


async def test_periods_are_requested_separately(proxy: Proxy, plugin: CloudWatch) -> None:
    """The requested time is the same for the whole request."""
    answer(proxy, lambda query: points(query, (START - timedelta(minutes=4), 5.0)))
    async with connected(plugin) as source:
        queries = [Query(metric="Lag", namespace="Test", period=timedelta(minutes=minutes)) for minutes in (1, 5)]
        await asyncio.gather(*(source.collect(query, NOW) for query in queries))
    assert len(proxy.made(GET)) == 2


async def test_one_bad_query_does_not_affect_the_others(proxy: Proxy, plugin: CloudWatch) -> None:
    def bad(request: dict[str, Any]) -> bool:
        return any("Expression" in query for query in request["MetricDataQueries"])

    async def refuse(request: web.Request, _: Forward) -> web.Response:
        asked = json.loads(await request.read())
        if bad(asked):
            body = {"__type": "com.amazonaws.cloudwatch#ValidationError", "message": "Error in expression 'q7'"}
            return sent(body, 400)
        results = [points(query, (START, 5.0)) for query in asked["MetricDataQueries"]]
        return sent({"MetricDataResults": results})

    proxy.rule(GET, refuse, None)
    async with connected(plugin) as source:
        queries = [Query(metric=f"m{number}", namespace="Test") for number in range(20)]
        wrong = Query(expression="SELECT nonsense")
        *readings, failure = await asyncio.gather(
            *(source.collect(query, NOW) for query in (*queries, wrong)), return_exceptions=True
        )
        assert [reading.value for reading in readings if isinstance(reading, Reading)] == [5.0] * 20
        assert isinstance(failure, RefusedError)
        assert "SELECT nonsense" in str(failure)


async def test_metrics_insights_queries_are_sent_one_by_one(proxy: Proxy, plugin: CloudWatch) -> None:
    """CloudWatch refuses a request with more than one."""
    answer(proxy, lambda query: points(query, (START, 5.0)))
    async with connected(plugin) as source:
        queries = [Query(expression=f" select MAX({name}) FROM Test") for name in "abc"]  # noqa: S608 - not a database
        await asyncio.gather(
            *(source.collect(query, NOW) for query in [LAG, Query(metric="Other", namespace="Test"), *queries])
        )
    assert sorted(len(call.parameters["MetricDataQueries"]) for call in proxy.made(GET)) == [1, 1, 1, 2]


@pytest.mark.parametrize("failure", ["no value", "denied"])
async def test_a_failed_query_is_retried_before_a_long_period_is_over(
    proxy: Proxy, plugin: CloudWatch, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    monkeypatch.setattr(cloudwatch, "MAX_ERROR_REUSE", 0.0)
    query = Query(metric="Lag", namespace="Test", period=timedelta(days=1))
    if failure == "denied":
        proxy.error(GET, "AccessDenied", "not authorized", 403)
    empty = iter([True] if failure == "no value" else [])
    day = NOW.replace(hour=0, minute=0, second=0) - timedelta(days=1)
    answer(proxy, lambda asked: points(asked) if next(empty, False) else points(asked, (day, 5.0)))
    async with connected(plugin) as source:
        with pytest.raises(EdgeError):
            await source.collect(query, NOW)
        assert (await source.collect(query, NOW)).value == 5.0
        await source.collect(query, NOW)
    assert len(proxy.made(GET)) == 2


async def test_it_is_retried_soon_after_a_failure(
    proxy: Proxy, plugin: CloudWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloudwatch, "ERROR_REUSE", 0.0)
    proxy.error(GET, "InternalFailure", status=500, times=3)
    answer(proxy, lambda query: points(query, (START, 5.0)))
    async with connected(plugin) as source:
        with pytest.raises(UnavailableError):
            await source.collect(LAG, NOW)
        assert (await source.collect(LAG, NOW)).value == 5.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "give metric"),
        ({"metric": "Lag"}, "namespace"),
        ({"metric": "Lag", "namespace": "N", "expression": "e"}, "not both"),
        ({"expression": "e", "stat": "Sum"}, "belong to metric"),
        ({"metric": "Lag", "namespace": "N", "stat": "max"}, "Maximum"),
        ({"metric": "Lag", "namespace": "N", "period": timedelta(seconds=15)}, "period"),
        ({"metric": "Lag", "namespace": "N", "period": timedelta(seconds=90)}, "period"),
        ({"expression": "SELECT MAX(Lag) FROM N", "period": timedelta(seconds=10)}, "whole minutes"),
        ({"metric": "Lag", "namespace": "N", "scale": math.inf}, "scale"),
        ({"metric": "Lag", "namespace": "N", "scale": 0.0}, "scale"),
        ({"metric": "Lag", "namespace": "N", "delay": timedelta(seconds=-1)}, "delay"),
    ],
)
def test_an_invalid_query_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Query(**parameters)


@pytest.mark.parametrize("stat", ["Average", "p99", "p99.9", "tm90", "IQM", "TM(2%:98%)", "SampleCount"])
def test_all_statistics_of_cloudwatch_are_accepted(stat: str) -> None:
    assert Query(metric="Lag", namespace="N", stat=stat).stat == stat


def test_a_max_age_below_the_age_of_every_value_is_refused_with_a_possible_one(tmp_path: Path) -> None:
    file = tmp_path / "autoscaler.yaml"
    for max_age, period, delay, good in (
        ("1m", "1m", "0s", "5m"),
        ("5m", "5m", "0s", "13m"),
        ("2m", "1m", "1m", "5m"),
        ("61s", "1m", "0s", ""),
        ("1m", "10s", "0s", ""),
    ):
        file.write_text(
            f"""
sources: {{cw: {{type: cloudwatch, region: eu-central-1}}}}
clusters:
  c:
    target: {{type: null}}
    max: 4
    max_age: {max_age}
    metrics: {{age: {{source: cw, metric: Age, namespace: N, period: {period}, delay: {delay}}}}}
    policies: {{p: {{type: target-tracking, metric: age, target: 1}}}}
"""
        )
        if good:
            with pytest.raises(ConfigurationError, match=rf"max_age: {max_age} is .* age: .* set max_age: {good}"):
                load(file, {})
        else:
            assert load(file, {}).clusters


def test_a_negative_fresh_is_refused() -> None:
    with pytest.raises(ValueError, match="fresh"):
        CloudWatch(region=REGION, fresh=timedelta(seconds=-1))
