"""The daemon as a process: signals, reload, and kills at any moment."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from autoscaler import config
from autoscaler.core.model import ClusterState
from autoscaler.core.state import call_failed
from autoscaler.core.step import step
from autoscaler.daemon.controller import UNANSWERED
from autoscaler.daemon.state_store import FILE, read_state
from autoscaler.ports import Record
from autoscaler.trace.codec import load_record, load_state
from autoscaler.trace.format import read

T = TypeVar("T")

CLUSTER = """
  {name}:
    interval: 100ms
    timeout: 80ms
    target: {{type: file, path: '{directory}/{name}'}}
    min: 1
    max: {most}
    metrics: {{load: {{source: wave, phase: {phase}}}}}
    policies:
      rate: {{type: target-tracking, metric: load, target: 100, mode: total}}
      ticks: {{type: counting}}
    up: {{window: 200ms, rates: [{{kind: replicas, value: 2, period: 500ms}}], cooldown: 100ms}}
    down: {{window: 600ms, rates: [{{kind: percent, value: 60, period: 1s}}]}}
    lookback: 2s
"""


@dataclass
class Place:
    """A directory with a configuration, and the daemons started in it."""

    directory: Path
    environment: dict[str, str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.directory / "config.yaml"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def configure(self, *names: str, most: int = 9, rest: str = "") -> None:
        clusters = "".join(
            CLUSTER.format(name=name, directory=self.directory, most=most, phase=number)
            for number, name in enumerate(names)
        )
        self.config.write_text(
            "daemon: {directory: var, listen: '127.0.0.1:0', log: json, decisions: 100000}\n"
            f"sources:\n  wave: {{type: wave}}\nclusters:{clusters}{rest}"
        )

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "autoscaler", "run", str(self.config), *options],
                stderr=log,
                env=self.environment,
                cwd=self.directory,
            )
        self.daemons.append(daemon)
        return daemon

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_bytes().decode()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_log(self, message: str, count: int = 1) -> dict[str, Any]:
        """Wait for a log line."""

        def found() -> dict[str, Any] | None:
            lines = [line for line in self.lines() if message in line["message"]]
            return lines[count - 1] if len(lines) >= count else None

        line = eventually(found, lambda: f"{message!r} is not in the log:\n{self.log.read_text()}")
        assert line is not None
        return line

    def url(self) -> str:
        return str(self.wait_for_log("started")["url"])


PATIENCE = 60.0
"""Seconds that a slow machine may take for something that normally takes a moment."""


def eventually(ask: Callable[[], T], trouble: Callable[[], str]) -> T:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(trouble())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    site = tmp_path / "site"
    (site / "plugins_of_files-1.0.dist-info").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("plugins_of_files.py"), site)
    information = site / "plugins_of_files-1.0.dist-info"
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins-of-files\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[autoscaler.sources]\nwave = plugins_of_files:Wave\n[autoscaler.targets]\nfile = plugins_of_files:File\n"
        "[autoscaler.policies]\ncounting = plugins_of_files:Counting\n"
    )
    monkeypatch.syspath_prepend(site)
    found = Place(tmp_path, {**os.environ, "PYTHONPATH": str(site)})
    yield found
    for daemon in found.daemons:
        daemon.kill()
        daemon.wait()


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:  # noqa: S310 - the daemon of this test
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with closing(error):
            return error.code, json.load(error)


def decided(place: Place, name: str, number: int) -> None:
    url = place.url()
    eventually(
        lambda: len(get(f"{url}/api/v1/clusters/{name}/decisions?limit=100")[1].get("decisions", ())) >= number,
        lambda: f"{name} was not decided about: {place.log.read_text()}",
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_it_between_ticks(place: Place, number: signal.Signals, code: int) -> None:
    place.configure("a", "b")
    daemon = place.start()
    decided(place, "a", 3)
    daemon.send_signal(number)
    assert daemon.wait(PATIENCE) == code
    # A tick in progress is completed, with its decision.
    messages = [line["message"] for line in place.lines()]
    assert "stopping" in messages
    assert messages[-1] == "stopped"
    assert not (place.directory / "var" / f"{FILE}-wal").exists()


def test_a_second_signal_ends_it_even_during_a_scale_call(place: Place) -> None:
    place.configure("a")
    place.config.write_text(place.config.read_text().replace("/a'}", "/a', takes: 25}").replace("min: 1", "min: 3"))
    daemon = place.start()
    called = place.directory / "a.calls"
    eventually(called.exists, place.log.read_text)
    daemon.terminate()
    # A signal this soon counts as a copy: `timeout` and others send it to the process and to its group. The test uses
    # another number, because two signals with the same number may arrive as one.
    daemon.send_signal(signal.SIGINT)
    place.wait_for_log("stopping")
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(0.5)  # the daemon waits for the answer
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 130
    assert place.lines()[-1]["message"] == "cancelled"
    kept = read_state(place.directory / "var", "a")
    assert kept is not None
    assert kept.rescale is not None
    assert not kept.rescale.confirmed
    # The next daemon notices that the call had no effect, and repeats it.
    place.config.write_text(place.config.read_text().replace(", takes: 25", ""))
    daemon = place.start()
    line = place.wait_for_log("did not accept")
    assert UNANSWERED in line["message"]
    eventually((place.directory / "a").exists, place.log.read_text)
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0


def test_a_reload_accepts_a_valid_file_and_refuses_an_invalid_one(place: Place) -> None:
    place.configure("a", "b")
    daemon = place.start()
    url = place.url()
    decided(place, "a", 3)
    decided(place, "b", 1)
    place.configure("a", "c", rest="  d: {interval: soon, targt: {}}\n")
    daemon.send_signal(signal.SIGHUP)
    count = place.wait_for_log("configuration not reloaded")["problems"]
    place.wait_for_log("config.yaml:", count)  # the problems follow, one line each
    problems = [line["message"] for line in place.lines() if "config.yaml:" in line["message"]]
    assert len(problems) == count >= 2
    assert any("targt" in problem for problem in problems)
    # On a busy machine a target may have answered too late at the last tick.
    _, body = eventually(lambda: (found := get(f"{url}/readyz"))[0] == 200 and found, place.log.read_text) or (0, {})
    assert body["reload"] == problems
    assert [row["name"] for row in get(f"{url}/api/v1/clusters")[1]["clusters"]] == ["a", "b"]
    place.configure("a", "c")
    daemon.send_signal(signal.SIGHUP)
    # Cluster c has b's phase of the wave; a is unchanged.
    line = place.wait_for_log("configuration reloaded")
    assert (line["added"], line["removed"], line["changed"]) == (["c"], ["b"], [])
    decided(place, "c", 1)
    assert [row["name"] for row in get(f"{url}/api/v1/clusters")[1]["clusters"]] == ["a", "c"]
    assert get(f"{url}/readyz")[1]["reload"] == "ok"
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0


def test_a_stop_does_not_wait_for_a_configuration_that_hangs_while_it_is_read(place: Place) -> None:
    place.configure("a")
    daemon = place.start()
    decided(place, "a", 1)
    place.config.unlink()
    os.mkfifo(place.config)
    daemon.send_signal(signal.SIGHUP)

    def opened() -> int | None:
        try:
            return os.open(place.config, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads it yet
            return None

    writer = eventually(opened, place.log.read_text)
    assert writer is not None
    try:
        daemon.terminate()
        assert daemon.wait(PATIENCE) == 0
    finally:
        os.close(writer)
    assert place.lines()[-1]["message"] == "stopped"


def test_a_second_daemon_on_the_same_directory_is_refused(place: Place) -> None:
    place.configure("a")
    daemon = place.start()
    place.url()
    second = subprocess.run(
        [sys.executable, "-m", "autoscaler", "run", str(place.config)],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert second.returncode == 1
    assert f"in use by another autoscaler (process {daemon.pid})" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_dry_run_calls_nothing(place: Place) -> None:
    place.configure("a")
    daemon = place.start("--dry-run")
    decided(place, "a", 10)
    eventually(  # at this point of the wave no rescale may be needed
        lambda: any(record.decision.rescale for record in records_of(place, "a")),
        lambda: f"no rescale: {place.log.read_text()}",
    )
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    assert not (place.directory / "a.calls").exists()
    records = list(read(place.directory / "var" / "history"))
    assert len(records) >= 10
    assert all(record.dry_run for record in records)
    assert any(record.decision.rescale for record in records)


def test_it_loses_nothing_over_kills_at_any_moment(place: Place) -> None:
    kill_again_and_again(place, kills=3, seed=20260131)


@pytest.mark.e2e
def test_it_loses_nothing_over_many_kills(place: Place) -> None:
    kill_again_and_again(place, kills=60, seed=20261124)


def kill_again_and_again(place: Place, *, kills: int, seed: int) -> None:
    """Kill daemons at random moments, then compare every decision with the pure step."""
    chance = random.Random(seed)  # noqa: S311 - moments to kill at, not secrets
    place.configure("a", "b")
    restarts: dict[str, set[int]] = {"a": set(), "b": set()}
    for number in range(kills):
        daemon = place.start()
        if number:
            # Wait until it has started, or most kills would come while Python starts.
            place.url()
        time.sleep(chance.uniform(0.0, 1.5))
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        for name, points in restarts.items():
            points.add(len(records_of(place, name)))
    daemon = place.start()
    decided(place, "a", 3)
    # Enough decisions to compare with the pure step, however slow the machine is.
    eventually(
        lambda: all(len(records_of(place, name)) > 3 * kills for name in restarts),
        lambda: f"few decisions: {place.log.read_text()}",
    )
    eventually(
        lambda: any(record.decision.rescale for name in restarts for record in records_of(place, name)),
        lambda: f"no rescale: {place.log.read_text()}",
    )
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0

    specs = {name: cluster.spec for name, cluster in config.load(place.config, {}).clusters.items()}
    rescales = 0
    for name, points in restarts.items():
        records = records_of(place, name)
        assert len(records) > 3 * kills, f"seed {seed}"
        state = ClusterState()
        for position, record in enumerate(records):
            rescale = state.rescale
            if rescale is not None and not rescale.confirmed and not rescale.error:
                if "bad luck" in str(record.decision.notes):
                    state = call_failed(state, "bad luck")
                elif position in points:
                    state = call_failed(state, UNANSWERED)
            state, decision = step(specs[name], state, record.observation)
            assert decision == record.decision, f"seed {seed}: cluster {name}, decision {position} of {len(records)}"
            rescales += decision.rescale
        kept = read_state(place.directory / "var", name)
        assert kept is not None
        assert kept.past == state.past, f"seed {seed}"
        assert kept.learned.memory == state.learned.memory, f"seed {seed}"
        # Each tick was counted once: learned values are saved together with their decision, or not at all.
        ticks = sum(number for key, number in kept.learned.memory["ticks"].items() if key.endswith(".ticks"))
        assert ticks == len(records), f"seed {seed}"
    assert rescales > 0
    # The history is complete too, except for lines that were not written at the moment of a kill.
    recorded = [record for record in read(place.directory / "var" / "history") if record.decision.cluster == "a"]
    assert set(map(at, recorded)) <= set(map(at, records_of(place, "a")))
    assert len(recorded) >= len(records_of(place, "a")) - kills


def at(record: Record) -> str:
    return record.decision.at.isoformat()


def records_of(place: Place, name: str) -> list[Record]:
    path = place.directory / "var" / FILE
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        try:
            rows = connection.execute(
                "SELECT record FROM decision JOIN cluster ON decision.id >> 32 = cluster.id "
                "WHERE name = ? ORDER BY decision.id",
                (name,),
            ).fetchall()
        except sqlite3.OperationalError:  # killed before it created the tables
            return []
    return [load_record(text) for (text,) in rows]


def test_a_full_disk_stops_decisions_and_they_resume_when_there_is_space(place: Place) -> None:
    place.configure("a")
    daemon = place.start()
    url = place.url()
    decided(place, "a", 3)
    # Limit the size of the daemon's files: this simulates a full disk.
    largest = max(path.stat().st_size for path in (place.directory / "var").rglob("*") if path.is_file())
    unlimited = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (max(largest, 8192), unlimited[1]))
    place.wait_for_log("cannot persist state")
    calls = (place.directory / "a.calls").read_text() if (place.directory / "a.calls").exists() else ""
    answer = eventually(lambda: found if (found := get(f"{url}/readyz"))[0] == 503 else None, lambda: "it stays ready")
    assert answer is not None
    assert answer[1]["store"] != "ok"
    assert get(f"{url}/healthz")[0] == 200
    time.sleep(0.5)
    after = (place.directory / "a.calls").read_text() if (place.directory / "a.calls").exists() else ""
    assert after == calls
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, unlimited)
    eventually(lambda: get(f"{url}/readyz")[0] == 200, lambda: f"not ready: {get(f'{url}/readyz')}")
    place.wait_for_log("state is persisted again")
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0


def damage(place: Place, name: str, number: object) -> dict[str, float]:
    """Replace the counts that cluster `name` has learned. Returns its learned memory before."""
    with closing(sqlite3.connect(place.directory / "var" / FILE)) as connection, connection:
        (text,) = connection.execute("SELECT state FROM cluster WHERE name = ?", (name,)).fetchone()
        state = json.loads(text)
        learned: dict[str, float] = state["learned"]["memory"]["ticks"]
        state["learned"]["memory"]["ticks"] = {key: learned[key] if key == "began_at" else number for key in learned}
        connection.execute("UPDATE cluster SET state = ? WHERE name = ?", (json.dumps(state).encode(), name))
    return learned


def test_damaged_learned_values_are_learned_again_or_reported(place: Place) -> None:
    place.configure("a", "b")
    daemon = place.start()
    decided(place, "a", 5)
    decided(place, "b", 5)
    daemon.kill()
    daemon.wait()
    learned = damage(place, "a", "NaN")
    damage(place, "b", {"what": "is this"})
    calls = place.directory / "b.calls"
    called = calls.read_bytes() if calls.exists() else b""
    before = len(records_of(place, "a"))
    daemon = place.start()
    line = place.wait_for_log("decision skipped")
    assert line["cluster"] == "b"
    assert "the state of cluster 'b' cannot be read: learned.memory.ticks" in line["error"]
    # The other cluster continues with its state, which could be read.
    decided(place, "a", before + 5)
    url = place.url()
    body = get(f"{url}/api/v1/clusters/a")[1]
    memory = body["state"]["learned"]["memory"]["ticks"]
    assert memory.pop("began_at") == learned["began_at"]
    assert 0 < sum(memory.values()) <= len(records_of(place, "a")) - before
    assert body["decision"]["recommendations"][1]["reason"] == "abstained"
    body = get(f"{url}/api/v1/clusters/b")[1]
    assert (body["learned"], body["decision"]) == (None, None)
    assert "cannot be read" in body["problem"]
    assert (calls.read_bytes() if calls.exists() else b"") == called
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0


def test_a_damaged_state_file_is_reported_at_the_start(place: Place) -> None:
    place.configure("a")
    (place.directory / "var").mkdir()
    (place.directory / "var" / FILE).write_bytes(b"garbage" * 1000)
    daemon = place.start()
    assert daemon.wait(PATIENCE) == 1
    text = place.log.read_text()
    assert "is damaged" in text
    assert "move the file away" in text
    assert "Traceback" not in text


def test_a_port_in_use_is_reported(place: Place) -> None:
    place.configure("a")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place.config.write_text(place.config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        daemon = place.start()
        assert daemon.wait(PATIENCE) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in place.log.read_text()
    assert "Traceback" not in place.log.read_text()


def test_the_state_on_disk_is_readable_for_people(place: Place) -> None:
    """The state is JSON: an operator can read it with sqlite3."""
    place.configure("a")
    daemon = place.start()
    decided(place, "a", 2)
    daemon.terminate()
    daemon.wait(PATIENCE)
    with closing(sqlite3.connect(place.directory / "var" / FILE)) as connection:
        (text,) = connection.execute("SELECT state FROM cluster WHERE name = 'a'").fetchone()
    assert load_state(text).watched_since is not None


def test_a_full_disk_at_the_start_is_reported(place: Place) -> None:
    place.configure("a")
    full = subprocess.run(
        [sys.executable, "-m", "autoscaler", "run", str(place.config)],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert full.returncode == 1
    assert "cannot be written" in full.stderr
    assert "Traceback" not in full.stderr


def test_signals_during_the_start_are_not_lost(place: Place) -> None:
    place.configure("a")
    text = place.config.read_text()
    place.config.unlink()
    os.mkfifo(place.config)
    daemon = place.start()
    with place.config.open("w") as config_file:  # blocks until the daemon reads it
        daemon.send_signal(signal.SIGHUP)
        config_file.write(text)
    place.url()
    with place.config.open("w") as config_file:  # blocks until the reload reads it
        config_file.write(text)
    place.wait_for_log("configuration reloaded")
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    daemon = place.start()
    with place.config.open("w") as config_file:
        daemon.terminate()
        config_file.write(text)
    assert daemon.wait(PATIENCE) == 0
    assert place.lines()[-1]["message"] == "stopped"


def test_a_plug_in_that_never_ends_does_not_delay_the_exit_of_the_process(place: Place) -> None:
    place.configure("a")
    place.config.write_text(place.config.read_text().replace("{type: wave}", "{type: wave, stubborn: true}"))
    daemon = place.start()
    decided(place, "a", 1)
    daemon.terminate()
    place.wait_for_log("stopping")
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(0.5)
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 130
    assert place.lines()[-1]["message"] == "tasks of plug-ins do not end"


RESOLVER = """
import os, socket, time
resolve = socket.getaddrinfo
def getaddrinfo(host, *rest, **more):
    if str(host).endswith("hang.test"):
        time.sleep(3600)
    return resolve(host, *rest, **more)
socket.getaddrinfo = getaddrinfo
"""
"""A sitecustomize.py that simulates a DNS server which does not answer for some names."""

HANGING = """
  {name}:
    interval: 1s
    target: {{type: file, path: '{directory}/{name}'}}
    max: 9
    metrics: {{load: {{source: {name}, {query}}}}}
    policies: {{rate: {{type: target-tracking, metric: load, target: 100, mode: total}}}}
"""
SOURCES = {
    "http": ("type: http, url: 'http://{name}.hang.test'", "path: load"),
    "flink": ("type: flink, url: 'http://{name}.hang.test:8081'", "metric: throughput"),
    "kafka": ("type: kafka, bootstrap_servers: '{name}.hang.test:9092'", "metric: arrivals, topics: [t]"),
    "prometheus": ("type: prometheus, url: 'http://{name}.hang.test:9090'", "query: up"),
}


def test_hanging_dns_lookups_delay_neither_another_cluster_nor_a_reload_nor_the_shutdown(place: Place) -> None:
    (place.directory / "site" / "sitecustomize.py").write_text(RESOLVER)
    names = {f"{kind}-{number}": kind for kind in SOURCES for number in range(3)}
    place.configure(
        "a",
        rest="".join(
            HANGING.format(name=name, directory=place.directory, query=SOURCES[kind][1]) for name, kind in names.items()
        ),
    )
    place.config.write_text(
        place.config.read_text().replace(
            "  wave: {type: wave}\n",
            "  wave: {type: wave}\n"
            + "".join(f"  {name}: {{{SOURCES[kind][0].format(name=name)}}}\n" for name, kind in names.items()),
        )
    )
    daemon = place.start()
    decided(place, "a", 30)
    for name in names:
        decided(place, name, 1)
    place.config.write_text(place.config.read_text().replace("target: 100", "target: 110"))
    daemon.send_signal(signal.SIGHUP)
    line = place.wait_for_log("configuration reloaded")
    assert len(line["changed"]) == 13
    daemon.terminate()
    # A daemon that waited for the lookups would wait for an hour.
    assert daemon.wait(PATIENCE) == 0
    assert place.lines()[-1]["message"] == "stopped"


def test_a_fleet_of_files_is_updated_without_a_reload_and_survives_restarts(place: Place) -> None:
    members, away = place.directory / "members", place.directory / "away"
    members.mkdir()

    def configure(least: int) -> None:
        place.config.write_text(
            "daemon: {directory: var, listen: '127.0.0.1:0', log: json}\n"
            f"sources:\n  wave: {{type: wave}}\n"
            f"fleets:\n  jobs:\n    discover: {{type: files, path: '{members}'}}\n    name: 'team/${{name}}'\n"
            "    interval: 1s\n    template:"
            + CLUSTER.format(name="", directory=place.directory, most="'${values.max | 9}'", phase=0)
            .replace("\n", "\n  ")
            .replace("  :\n", "\n", 1)
            .replace("min: 1", f"min: {least}")
            .replace(f"path: '{place.directory}/'", f"path: '{place.directory}/${{name}}'")
        )

    def names() -> list[str]:
        return [row["name"] for row in get(f"{place.url()}/api/v1/clusters")[1]["clusters"]]

    configure(1)
    daemon = place.start()
    place.wait_for_log("no member was found")
    assert get(f"{place.url()}/healthz") == (200, {"ok": True, "clusters": 0, "overdue": []})
    for name in "abc":
        (members / f"{name}.yaml").write_text("max: 5\n")
    decided(place, "team%2Fa", 3)
    (members / "bad.yaml").write_text("max: lots\n")
    problem = str(place.wait_for_log("member refused")["problem"])
    assert f"{place.config}:" in problem
    assert "fleets.jobs[bad.yaml].template.max: " in problem
    (members / "c.yaml").unlink()
    assert place.wait_for_log("member left")["member"] == "c.yaml"
    eventually(lambda: names() == ["team/a", "team/b"], place.log.read_text)
    configure(2)
    daemon.send_signal(signal.SIGHUP)
    assert place.wait_for_log("configuration reloaded")["changed"] == ["team/a", "team/b"]
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    members.rename(away)
    daemon = place.start()
    assert place.wait_for_log("members restored")["members"] == 2
    place.wait_for_log("discovery failed: the known members are kept")
    decided(place, "team/b", 3)
    away.rename(members)
    place.wait_for_log("discovery answers again")
    assert names() == ["team/a", "team/b"]
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
