"""`status` and `explain` of hundreds of clusters, against a server that answers like a daemon with fleets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

from autoscaler import cli


def row(name: str, fleet: str | None, **changes: Any) -> dict[str, Any]:
    """A row of a cluster without problems."""
    well: dict[str, Any] = {
        "name": name,
        "fleet": fleet,
        "dry_run": False,
        "at": "2026-01-31T17:05:00+00:00",
        "age": 3.0,
        "min": 1,
        "max": 8,
        "current": 2,
        "ready": 2,
        "proposed": 2,
        "desired": 2,
        "reason": "steady",
        "rescale": None,
        "missing": {},
        "problem": None,
    }
    return well | changes


def fleet(name: str, **changes: Any) -> dict[str, Any]:
    well: dict[str, Any] = {
        "name": name,
        "answered_at": "2026-01-31T17:05:00+00:00",
        "age": 4.2,
        "problem": None,
        "failures": 0,
        "members": 200,
        "clusters": 200,
        "held": [],
        "refused": [],
    }
    return well | changes


class Answers:
    """The answers of the server.

    Attributes:
        clusters, fleets, copies: the rows; without fleets it answers like a daemon of an earlier version, which has
            none of the rest.
        asked: the names of the clusters whose decisions were requested.
    """

    def __init__(self) -> None:
        self.clusters: list[dict[str, Any]] = []
        self.fleets: list[dict[str, Any]] | None = []
        self.copies: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.url = ""

    def get(self, path: str) -> dict[str, Any]:
        if path == "/api/v1/clusters":
            fleets = {} if self.fleets is None else {"fleets": self.fleets, "copies": self.copies}
            return {"dry_run": False, "reload": "ok", **fleets, "clusters": self.clusters}
        name = unquote(path.split("/")[4])
        self.asked.append(name)
        return {"cluster": name, "decisions": [{"decision": {"at": "x"}, "explanation": f"why {name} is as it is"}]}


@pytest.fixture
def daemon() -> Iterator[Answers]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path.partition("?")[0])).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    answers.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield answers
    server.shutdown()
    thread.join()
    server.server_close()


def status(daemon: Answers, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["status", "--url", daemon.url, *options]) == 0
    return capsys.readouterr().out


def columns(text: str, name: str) -> list[str]:
    """The cells of the line that begins with this."""
    return next(line for line in text.splitlines() if line.startswith(name)).split()


def test_controls_have_a_column_while_there_are_some(daemon: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.clusters = [row("a", None), row("b", None)]
    assert "control" not in status(daemon, capsys)
    control: dict[str, Any] = {"up": False, "down": False, "replicas": None, "min": None, "max": None, "text": "…"}
    shown = {
        "pause": {"kind": "pause", "up": True, "down": True},
        "pause up": {"kind": "pause", "up": True},
        "pause down": {"kind": "pause", "down": True},
        "hold 12": {"kind": "hold", "replicas": 12},
        "limit 2-8": {"kind": "limit", "min": 2, "max": 8},
        "limit max 8": {"kind": "limit", "max": 8},
        "limit min 2": {"kind": "limit", "min": 2},
    }
    names = dict(zip("cdefghi", shown, strict=True))
    daemon.clusters += [row(name, None, controls=[{**control, **shown[what]}]) for name, what in names.items()]
    daemon.clusters.append(row("j", None, controls=[{**control, **shown["pause up"]}, {**control, **shown["hold 12"]}]))
    text = status(daemon, capsys)
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert " control " in lines["cluster"]
    assert " - " in lines["a"]
    assert all(f" {what} " in lines[name] for name, what in names.items())
    assert " pause up, hold 12 " in lines["j"]


def test_hundreds_of_clusters_fit_on_a_screen_with_those_that_have_problems(
    daemon: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.clusters = [row(f"prod/job-{number}", "streaming") for number in range(200)] + [row("own", None)]
    for number in range(12):
        daemon.clusters[number] |= {"problem": f"target: no answer from {number}"}
    rescale = {"before": 2, "to": 8, "phase": "starting"}
    daemon.clusters[50] |= {"current": 2, "desired": 8, "rescale": rescale}
    daemon.clusters[51] |= {"current": None, "desired": None}
    for number in (60, 61):
        daemon.clusters[number] |= {"controls": [{"kind": "hold", "replicas": 2}]}
    refused = [
        {"member": f"x{n}", "cluster": None, "problems": [f"c.yaml:7: fleets.streaming[x{n}].template.max: no number"]}
        for n in range(3)
    ]
    kept = {"member": "job-0", "cluster": "prod/job-0", "problems": ["shown with its cluster"]}
    held = [{"member": "job-1", "cluster": "prod/job-1", "age": 12.0}]
    daemon.fleets = [
        fleet("streaming", refused=[*refused, kept], held=held),
        fleet("batch", age=None, problem="403: no permission", members=0, clusters=0),
    ]
    text = status(daemon, capsys)
    assert len(text.splitlines()) < 30
    # clusters, with problems, refused, missing, at max, rescaling, control, sums of the sizes
    assert columns(text, "streaming") == [
        "streaming",
        "200",
        "12",
        "4",
        "1",
        "1",
        "1",
        "2",
        "398",
        "404",
        "4",
        "s",
        "ago",
    ]
    assert columns(text, "batch") == ["batch", "0", "0", "0", "0", "0", "0", "0", "0", "0", "not", "yet"]
    assert columns(text, "(no fleet)") == ["(no", "fleet)", "1", "0", "-", "-", "0", "0", "0", "2", "2", "-"]
    assert "12 clusters with a problem or a missing reading; the first 10:" in text
    assert "prod/job-9: target: no answer from 9" in text
    assert "prod/job-10: target" not in text
    assert "Fleet batch: the discovery failed, the known members are kept: 403: no permission" in text
    assert "Fleet streaming: 1 member not found, kept until missing for `confirm`" in text
    assert "Refused: c.yaml:7: fleets.streaming[x0].template.max: no number (and 2 more like it)" in text
    assert "shown with its cluster" not in text


def test_a_summary_without_problems_has_only_the_fleets(daemon: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.clusters = [row(f"job-{number}", "f") for number in range(41)]
    daemon.fleets = [fleet("f")]
    assert len(status(daemon, capsys).splitlines()) == 4


def test_a_fleet_or_the_clusters_with_problems_are_listed(daemon: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.clusters = [row(f"prod/job-{number}", "streaming") for number in range(60)] + [row("own", None)]
    daemon.clusters[7] |= {"problem": "refused"}
    daemon.fleets = [fleet("streaming"), fleet("batch", problem="away")]
    text = status(daemon, capsys, "--fleet", "stream*")
    assert len(text.splitlines()) == 61
    assert "own" not in text
    assert "away" not in text
    text = status(daemon, capsys, "--troubled")
    assert text.splitlines()[1].startswith("prod/job-7")
    assert "Fleet batch: the discovery failed, the known members are kept: away" in text
    assert len(status(daemon, capsys, "--filter", "prod/job-1*").splitlines()) == 12
    assert json.loads(status(daemon, capsys, "--fleet", "batch", "--json"))["clusters"] == []
    assert cli.main(["status", "--url", daemon.url, "--fleet", "nobody"]) == 1
    assert "there is no fleet nobody; there are: streaming, batch" in capsys.readouterr().err


def test_status_and_the_page_agree_on_which_clusters_have_problems(
    daemon: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    at_maximum = "at its maximum of 8, with 400 s of backlog"
    daemon.clusters = [row("well", None, trouble=None), row("full", None, trouble=at_maximum)]
    assert f"3 s ago  {at_maximum}" in status(daemon, capsys)
    text = status(daemon, capsys, "--troubled")
    assert "full" in text
    assert "well" not in text


def test_status_reports_that_there_is_no_member_yet(daemon: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.fleets = [fleet("f", age=None, problem="the discovery has not answered yet")]
    text = status(daemon, capsys)
    assert text.startswith("There is no cluster yet.")
    assert "the discovery has not answered yet" in text


def test_a_daemon_of_an_earlier_version_has_no_fleets(daemon: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.fleets = None
    daemon.clusters = [row(f"job-{number}", None) for number in range(60)]
    for each in daemon.clusters:
        del each["fleet"]
    assert columns(status(daemon, capsys), "(no fleet)")[2] == "60"


def test_a_pattern_explains_each_cluster_that_matches(daemon: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.clusters = [row(f"prod/job-{number}", "f") for number in range(30)]
    assert cli.main(["explain", "prod/job-2?", "--url", daemon.url]) == 0
    assert daemon.asked == [f"prod/job-2{number}" for number in range(10)]
    assert capsys.readouterr().out.count("why prod/job-2") == 10
    assert cli.main(["explain", "*-7", "--url", daemon.url, "--json"]) == 0
    assert [answer["cluster"] for answer in json.loads(capsys.readouterr().out)["clusters"]] == ["prod/job-7"]
    assert cli.main(["explain", "prod/job-7", "--url", daemon.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == "prod/job-7"


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("test/*", "no cluster matches test/*; there are: prod/job-0, prod/job-1,"),
        ("prod/*", "prod/* matches 30 clusters, expected 1 to 20; such as: prod/job-0,"),
    ],
)
def test_a_pattern_with_no_match_or_too_many_is_refused(
    daemon: Answers, capsys: pytest.CaptureFixture[str], pattern: str, problem: str
) -> None:
    daemon.clusters = [row(f"prod/job-{number}", "f") for number in range(30)]
    assert cli.main(["explain", pattern, "--url", daemon.url]) == 1
    assert problem in capsys.readouterr().err
    assert daemon.asked == []


def test_unreachable_copies_are_named(daemon: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.clusters = [row("own", None)]
    daemon.copies = [
        {"name": "pod-a", "url": "http://10.0.0.7:8765", "problem": None},
        {"name": "pod-b", "url": "http://10.0.0.8:8765", "problem": "no answer within 5 s"},
    ]
    text = status(daemon, capsys)
    assert "The copy pod-b (http://10.0.0.8:8765) cannot be asked: no answer within 5 s" in text
    assert "pod-a" not in text
