"""History from Prometheus, with a server whose answers the test sets."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow.parquet as pq
import pytest

from autoscaler.cli import history_prometheus, spark_options
from autoscaler.config import load
from autoscaler.core.model import Decision, Observation, Reading
from autoscaler.history import read
from autoscaler.history.dataset import open_dataset
from autoscaler.history.ingest_prometheus import Span, spans
from autoscaler.ports import AnswerError, AutoscalerError, ConfigurationError, Secret
from autoscaler.sources.prometheus import Prometheus, Ranges, Series

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
HOUR, STEP = timedelta(hours=1), timedelta(minutes=1)

CONFIG = """
sources:
  prom: {{type: prometheus, url: '{url}', token: s3cret}}
  kafka: {{type: kafka, bootstrap_servers: '127.0.0.1:9'}}
clusters:
  orders:
    target: {{type: 'null'}}
    max: 12
    metrics:
      cpu: {{source: prom, query: 'avg by (cluster) (cpu)', match: {{cluster: orders}}}}
      lag: {{source: kafka, topics: [orders], group: orders, metric: lag}}
    policies: {{busy: {{type: target-tracking, metric: cpu, target: 0.7}}}}
  clicks:
    target: {{type: 'null'}}
    max: 12
    metrics:
      cpu: {{source: prom, query: 'avg by (cluster) (cpu)', match: {{cluster: clicks}}}}
      errors: {{source: prom, query: 'sum by (cluster) (errors)', match: {{cluster: clicks}}, empty: zero}}
      busy: {{source: prom, query: 'busy', match: {{cluster: clicks}}, many: each}}
    policies: {{busy: {{type: target-tracking, metric: cpu, target: 0.7}}}}
"""

NOWHERE = """
sources:
  kafka: {{type: kafka, bootstrap_servers: '127.0.0.1:9'}}
clusters:
  orders:
    target: {{type: 'null'}}
    max: 12
    metrics: {{lag: {{source: kafka, topics: [orders], group: orders, metric: lag}}}}
    policies: {{busy: {{type: target-tracking, metric: lag, target: 10}}}}
"""

Points = Callable[[float], str | None]


@dataclass
class Stub:
    """A server for range queries: expression -> its series, each a function of the time; `None` is a missing sample."""

    series: dict[str, list[tuple[dict[str, str], Points]]] = field(default_factory=dict)
    respond: Callable[[dict[str, str]], tuple[int, bytes] | None] = lambda _: None
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def answer(self, asked: dict[str, str]) -> tuple[int, bytes]:
        self.requests.append(asked)
        said = self.respond(asked)
        if said is not None:
            return said
        begin, end, step = (float(asked[name]) for name in ("start", "end", "step"))
        times = [begin + number * step for number in range(int((end - begin) // step) + 1)]
        result = []
        for labels, points in self.series.get(asked["query"], []):
            values = [[at, value] for at in times if (value := points(at)) is not None]
            if values:
                result.append({"metric": labels, "values": values})
        return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


@pytest.fixture
def stub() -> Iterator[Stub]:
    served = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            assert address.path == "/api/v1/query_range"
            assert self.headers["Authorization"] == "Bearer s3cret"
            asked = {name: values[0] for name, values in parse_qs(address.query).items()}
            status, body = served.answer(asked)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that has given up is no news
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield served
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_prometheus, "MAX_WAIT", 0.01)


def constant(value: float) -> Points:
    return lambda _: str(value)


def hours(at: float) -> float:
    return (at - BEGIN.timestamp()) / 3600


def parsed(stub: Stub, tmp_path: Path, *arguments: str, config: str = CONFIG) -> argparse.Namespace:
    tmp_path.mkdir(exist_ok=True)
    file = tmp_path / "config.yaml"
    file.write_text(config.format(url=stub.url))
    parser = argparse.ArgumentParser()
    history_prometheus.add_arguments(parser)
    spark_options.add_arguments(parser)
    parser.add_argument("--json", action="store_true")
    given = ["--prometheus", "--config", str(file), "--from", BEGIN.isoformat(), "--rate", "10000", "--step", "1m"]
    until = [] if "--to" in arguments else ["--to", (BEGIN + 2 * HOUR).isoformat()]
    return parser.parse_args([*given, *until, *arguments])


def import_(stub: Stub, tmp_path: Path, *arguments: str, config: str = CONFIG) -> int:
    return history_prometheus.run(parsed(stub, tmp_path, *arguments, config=config), tmp_path / "dataset")


def asked(stub: Stub, tmp_path: Path, *arguments: str, config: str = CONFIG) -> list[str]:
    """Send the queries without making observations; returns the kept answers, each as its query and its times."""
    options = parsed(stub, tmp_path, *arguments, config=config)
    _, answers, _ = history_prometheus.ask(load(options.config, {}), options, tmp_path / "dataset")
    kept = [pq.read_table(answer.file)["at"].unique().to_pylist() for answer in answers]
    assert all(times == sorted(set(times)) for times in kept)
    return [f"{answer.asked.query} {len(times)}" for answer, times in zip(answers, kept, strict=True)]


def imported(tmp_path: Path, cluster: str) -> list[tuple[Observation, Decision]]:
    records = read.read(tmp_path / "dataset", clusters=[cluster])
    return [(record.observation, record.decision) for record in records]


def fleet(stub: Stub) -> None:
    """Two clusters; orders doubles its size after an hour."""
    by = {name: {"cluster": name} for name in ("orders", "clicks")}
    stub.series = {
        "avg by (cluster) (cpu)": [(by["orders"], constant(0.5)), (by["clicks"], constant(0.25))],
        "max by (cluster) (autoscaler_current_replicas)": [
            (by["orders"], lambda at: "4" if hours(at) < 1 else "8"),
            (by["clicks"], constant(2)),
        ],
        "max by (cluster) (autoscaler_ready_replicas)": [(by["orders"], constant(4)), (by["clicks"], constant(2))],
        "busy": [
            ({"__name__": "busy", "cluster": "clicks", "pod": "b"}, constant(0.5)),
            ({"__name__": "busy", "cluster": "clicks", "pod": "a"}, constant(0.25)),
        ],
        "timestamp(busy)": [
            ({"cluster": "clicks", "pod": "b"}, lambda at: str(at - 1.5)),
            ({"cluster": "clicks", "pod": "a"}, lambda at: str(at - 1)),
        ],
        "max by (cluster, metric) (autoscaler_metric_value)": [({"cluster": "orders", "metric": "lag"}, constant(70))],
        "min by (cluster, metric) (timestamp(autoscaler_metric_age_seconds) - autoscaler_metric_age_seconds)": [
            ({"cluster": "orders", "metric": "lag"}, lambda at: str(at - 3))
        ],
    }


@pytest.mark.usefixtures("spark")
def test_data_of_prometheus_becomes_observations_as_a_daemon_would_have_made_them(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet(stub)
    assert import_(stub, tmp_path, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["clusters"]["orders"] == {"observations": 121, "with_size": 121}
    assert report["added"] == 242

    orders = imported(tmp_path, "orders")
    assert [observation.at for observation, _ in orders] == [BEGIN + number * STEP for number in range(121)]
    at = BEGIN + 30 * STEP
    assert orders[30][0] == Observation(
        at=at, desired=4, ready=4, metrics={"cpu": Reading(0.5, at), "lag": Reading(70, at - timedelta(seconds=3))}
    )
    changes = [(observation.at, decision.current, decision.desired) for observation, decision in orders]
    assert [change for change in changes if change[1] != change[2]] == [(BEGIN + 59 * STEP, 4, 8)]

    seen, _ = imported(tmp_path, "clicks")[-1]
    last = BEGIN + 2 * HOUR
    assert seen == Observation(
        at=last,
        desired=2,
        ready=2,
        metrics={
            "cpu": Reading(0.25, last),
            "errors": Reading(0.0, last),
            "busy": Reading((0.25, 0.5), last - timedelta(seconds=1.5)),
        },
    )


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_a_gap_stays_a_gap_and_missing_values_have_a_reason(stub: Stub, tmp_path: Path) -> None:
    fleet(stub)
    orders = {"cluster": "orders"}
    stub.series["max by (cluster, metric) (autoscaler_metric_value)"] = []

    def alive(value: str) -> Points:
        return lambda at: None if 0.5 <= hours(at) < 1.5 else value

    stub.series["avg by (cluster) (cpu)"] = [
        (orders, lambda at: None if 0.25 <= hours(at) < 1.5 else "NaN" if hours(at) < 0.1 else "0.5"),
    ]
    for name in ("current", "ready"):
        stub.series[f"max by (cluster) (autoscaler_{name}_replicas)"] = [(orders, alive("4"))]
    stub.series["busy"] = []
    assert import_(stub, tmp_path) == 0
    found = {observation.at: observation for observation, _ in imported(tmp_path, "orders")}
    assert BEGIN + 29 * STEP in found
    assert not [at for at in found if BEGIN + 30 * STEP <= at < BEGIN + 90 * STEP]
    assert BEGIN + 90 * STEP in found
    assert found[BEGIN].missing == {"cpu": "value is not a finite number", "lag": "no sample"}
    assert found[BEGIN + 20 * STEP].missing == {"cpu": "no sample", "lag": "no sample"}
    # A server without data does not give zero errors.
    assert imported(tmp_path, "clicks") == []


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_each_query_is_sent_once_for_all_clusters_and_never_again(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet(stub)
    assert import_(stub, tmp_path, "--window", "30m") == 0
    queries = [(request["query"], request["start"]) for request in stub.requests]
    assert len(set(queries)) == len(queries)
    assert [query for query, _ in queries].count("avg by (cluster) (cpu)") == 5
    stub.requests.clear()
    capsys.readouterr()
    assert import_(stub, tmp_path, "--window", "30m", "--json") == 0
    assert stub.requests == []
    report = json.loads(capsys.readouterr().out)
    assert (report["asked"], report["added"], report["known"], report["different"]) == (0, 0, 242, 0)
    # Later more is requested: only the extended window, and those after it, are queried.
    assert import_(stub, tmp_path, "--window", "30m", "--to", (BEGIN + 3 * HOUR).isoformat(), "--json") == 0
    assert {float(request["start"]) for request in stub.requests} == {
        (BEGIN + hour * HOUR).timestamp() for hour in (2, 2.5, 3)
    }
    assert json.loads(capsys.readouterr().out)["added"] == 120
    assert len(imported(tmp_path, "orders")) == 181


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("before", ["2h", "50m"])
def test_with_another_window_each_sample_still_counts_once(stub: Stub, tmp_path: Path, before: str) -> None:
    fleet(stub)
    pods = [{"cluster": "clicks", "pod": pod} for pod in "ab"]
    stub.series["sum by (cluster) (errors)"] = [(pods[0], constant(1)), (pods[1], lambda at: str(hours(at)))]
    config = CONFIG.replace("empty: zero", "empty: zero, many: sum")
    open_dataset(tmp_path / "dataset", make=True)
    asked(stub, tmp_path, "--window", before, config=config)
    # Of two hours one answer has all; of fifty minutes some overlap with new ones.
    assert import_(stub, tmp_path, "--window", "30m", config=config) == 0
    seen = [observation for observation, _ in imported(tmp_path, "clicks")]
    assert [one.at for one in seen] == [BEGIN + number * STEP for number in range(121)]
    assert [one.metrics["errors"].value for one in seen] == [1 + hours(one.at.timestamp()) for one in seen]
    assert {one.metrics["busy"].value for one in seen} == {(0.25, 0.5)}


def test_a_server_that_disappears_in_the_middle_loses_nothing(stub: Stub, tmp_path: Path) -> None:
    fleet(stub)
    whole = asked(stub, tmp_path / "undisturbed", "--window", "30m")
    stub.respond = lambda request: (503, b"gone") if float(request["start"]) >= (BEGIN + HOUR).timestamp() else None
    with pytest.raises(AutoscalerError) as raised:
        asked(stub, tmp_path, "--window", "30m")
    assert "HTTP 503: 'gone'; 12 of 30 answers are stored, all up to 2026-01-05 01:00:00 UTC" in str(raised.value)
    assert "the same command continues from there" in str(raised.value)
    stub.respond = lambda _: None
    stub.requests.clear()
    assert asked(stub, tmp_path, "--window", "30m") == whole
    assert min(float(request["start"]) for request in stub.requests) == (BEGIN + HOUR).timestamp()


def test_a_query_is_repeated_while_the_server_is_too_busy(stub: Stub, tmp_path: Path) -> None:
    fleet(stub)
    whole = asked(stub, tmp_path / "undisturbed")
    refused: set[str] = set()

    def busy(request: dict[str, str]) -> tuple[int, bytes] | None:
        if request["query"] in refused:
            return None
        refused.add(request["query"])
        return 429, b"slow down"

    stub.respond = busy
    assert asked(stub, tmp_path) == whole


def test_an_answer_that_does_not_come_in_time_is_abandoned(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(stub)
    monkeypatch.setattr(history_prometheus, "TIMEOUT", 0.05)
    monkeypatch.setattr(history_prometheus, "ATTEMPTS", 1)
    asleep = threading.Event()

    def slow(_: dict[str, str]) -> None:
        asleep.wait(30)

    stub.respond = slow
    with pytest.raises(AutoscalerError, match=r"no answer within 0.05s; 0 of 6 answers are stored"):
        asked(stub, tmp_path)
    asleep.set()


def test_a_request_that_is_too_large_is_split_in_halves(stub: Stub, tmp_path: Path) -> None:
    fleet(stub)
    whole = asked(stub, tmp_path / "undisturbed")

    def limited(request: dict[str, str]) -> tuple[int, bytes] | None:
        if float(request["end"]) - float(request["start"]) < 1000:
            return None
        return 422, json.dumps({"status": "error", "error": "query processing would load too many samples"}).encode()

    stub.respond = limited
    assert asked(stub, tmp_path) == whole
    assert "avg by (cluster) (cpu) 121" in whole


def test_an_invalid_query_is_reported_with_the_servers_message(stub: Stub, tmp_path: Path) -> None:
    stub.respond = lambda _: (400, json.dumps({"status": "error", "error": "parse error: unexpected )"}).encode())
    with pytest.raises(AutoscalerError, match=r"query 'avg by .*: HTTP 400: 'parse error: unexpected \)'") as raised:
        import_(stub, tmp_path)
    assert "continues from there" not in str(raised.value)
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    "series",
    [
        5,
        {"metric": None, "values": []},
        {"metric": {}, "values": 5},
        {"metric": {}, "values": {"a": 1}},
        {"metric": {}, "values": [[1767571200]]},
        {"metric": {}, "values": ["ab"]},
        {"metric": {}, "values": [[1767571200, "many"]]},
        {"metric": {}, "values": [[1767571200, None]]},
        {"metric": {}, "values": [["noon", "1"]]},
        {"metric": {}, "values": [["NaN", "1"]]},
        {"metric": {}, "values": [[10**400, "1"]]},
        {"metric": {}, "values": [[1e300, "1"]]},
    ],
    ids=lambda series: str(series)[:50],
)
def test_an_answer_that_is_not_a_series_is_reported_and_not_kept(stub: Stub, tmp_path: Path, series: object) -> None:
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    stub.respond = lambda _: (200, body)
    with pytest.raises(AnswerError, match=r"query 'avg by .*: not a series: "):
        asked(stub, tmp_path)
    assert not [*(tmp_path / "dataset").rglob("*.parquet")]


@pytest.mark.parametrize("series", [{"metric": {}}, {"metric": {}, "values": None}], ids=str)
def test_a_series_without_values_like_that_of_a_histogram_has_no_points(stub: Stub, series: object) -> None:
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    stub.respond = lambda _: (200, body)
    with Ranges(Prometheus(url=stub.url, token=Secret("s3cret")), 5.0) as ranges:
        assert ranges.ask("up", BEGIN, BEGIN + HOUR, STEP) == [Series({}, [])]


@pytest.mark.e2e
@pytest.mark.usefixtures("spark")
def test_sizes_come_from_any_query_that_returns_the_name_of_the_cluster(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet(stub)
    stub.series['(spec_replicas{deployment="orders"})'] = [({"deployment": "orders"}, constant(6))]
    assert import_(stub, tmp_path, "--replicas", 'spec_replicas{deployment="{cluster}"}') == 0
    (orders, _), (clicks, _) = imported(tmp_path, "orders")[0], imported(tmp_path, "clicks")[0]
    assert (orders.desired, orders.ready) == (6, 6)
    assert (clicks.desired, clicks.ready, clicks.missing) == (None, None, {"target": "no sample"})

    # Existing rows stay, whatever comes later, and that is reported.
    assert "differ from what" not in capsys.readouterr().err
    assert import_(stub, tmp_path) == 0
    printed = capsys.readouterr()
    assert "0 observations added, 242 already known" in printed.out
    assert "242 observations of those differ from what Prometheus has now: other metrics or sizes" in printed.err
    assert imported(tmp_path, "orders")[0][0] == orders


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--window", "4h", "--step", "1s"], "14,400 steps of 1s.* at most --window 3h3m20s"),
        (["--to", "2026-01-04"], "--to must be after --from"),
        (["--ready", "up"], "--ready needs --replicas"),
    ],
)
def test_invalid_requests_are_refused_before_anything_is_sent(
    stub: Stub, tmp_path: Path, arguments: list[str], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        import_(stub, tmp_path, *arguments)
    assert stub.requests == []


def test_the_argument_of_the_option_must_be_a_url(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parsed(stub, tmp_path).prometheus == ""
    assert parsed(stub, tmp_path, "--prometheus", "https://there/prefix").prometheus == "https://there/prefix"
    with pytest.raises(SystemExit):
        parsed(stub, tmp_path, "--prometheus", "dataset")
    assert "'dataset' is not a URL like http://prometheus:9090; DATASET goes before it" in capsys.readouterr().err


def test_windows_end_at_the_same_times_in_every_run() -> None:
    later = BEGIN + timedelta(days=30)
    first = spans(BEGIN + timedelta(minutes=40, seconds=7), BEGIN + 3 * HOUR, HOUR, STEP, later)
    at = int(BEGIN.timestamp())
    assert first == [
        Span(at + 2460, at + 3600),
        Span(at + 3600, at + 7200),
        Span(at + 7200, at + 10800),
        Span(at + 10800, at + 10860),
    ]
    # Data that may still change is left for the next run.
    assert spans(BEGIN, BEGIN + 3 * HOUR, HOUR, STEP, BEGIN + timedelta(minutes=10)) == [Span(at, at + 9 * 60 + 60)]


def test_queries_are_rate_limited() -> None:
    pace = history_prometheus._RateLimiter(10.0)
    slept: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.monotonic", lambda: sum(slept))
        patch.setattr("time.sleep", slept.append)
        for _ in range(3):
            pace.wait()
    assert slept == [10.0, 10.0]


def test_without_a_cluster_that_prometheus_knows_nothing_is_queried(stub: Stub, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no cluster has a metric of a source of type prometheus"):
        import_(stub, tmp_path, config=NOWHERE)
