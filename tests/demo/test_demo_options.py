"""The demo's options and its small parts that need no cluster."""

from __future__ import annotations

import argparse
import io
import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from autoscaler.cli import COMMANDS
from autoscaler.core.model import Decision, Observation, Reason
from autoscaler.demo import add_arguments, run, runner
from autoscaler.demo.config import configuration
from autoscaler.demo.environment import Environment
from autoscaler.demo.flink.environment import FlinkEnvironment
from autoscaler.demo.live_view import LiveView, Status, line, live_view, table
from autoscaler.demo.load import surge
from autoscaler.demo.processes import DemoError, Processes
from autoscaler.demo.runner import Runner, _Observed
from autoscaler.demo.spark.environment import SparkEnvironment
from autoscaler.ports import AutoscalerError, Record
from autoscaler.simulation.plant import START
from autoscaler.trace.codec import dump_record
from autoscaler_policies.adaptive.policy import Adaptive


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("seconds", ["5", "-1", "nan", "inf", "long"])
def test_an_invalid_duration_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--duration", seconds)
    assert "60 seconds or more" in capsys.readouterr().err


def test_an_unreadable_load_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "load.csv"
    assert run(parsed("--load", str(path), "--output", str(tmp_path / "out"))) == 2
    path.write_text("0,10\n5,many\n")
    assert run(parsed("--load", str(path), "--output", str(tmp_path / "out"))) == 2
    assert "load.csv:2" in capsys.readouterr().out


def test_results_of_an_earlier_run_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text("{}")
    assert run(parsed("--output", str(tmp_path))) == 2
    assert "not an empty directory" in capsys.readouterr().out


@pytest.mark.parametrize("environment", [SparkEnvironment, pytest.param(FlinkEnvironment, marks=pytest.mark.e2e)])
@pytest.mark.parametrize("directory", ["plain", "with a blank: and # more"])
def test_the_configuration_file_is_valid(
    environment: Callable[[Processes, Path], Environment], tmp_path: Path, directory: str
) -> None:
    from autoscaler.config.load import load  # noqa: PLC0415 - only this test needs it

    work = tmp_path / directory
    try:
        parts = environment(Processes(tmp_path / "logs", work / "workers"), work).parts
    except AutoscalerError as error:
        pytest.skip(str(error))
    path = tmp_path / "autoscaler.yaml"
    path.write_text(configuration(parts, 6, 1, work, 240.0))
    cluster = load(path, {}).clusters["demo"]
    assert (cluster.spec.limits.minimum, cluster.spec.limits.maximum) == (1, 4)
    assert cluster.spec.down.window.total_seconds() == 0
    policy = cluster.spec.policies[0].policy
    assert isinstance(policy, Adaptive)
    assert set(policy.metrics) <= set(cluster.spec.metrics)
    assert (policy.utilization in cluster.spec.metrics) == (environment is FlinkEnvironment)
    assert (policy.objective.total_seconds(), policy.scale_down_window.total_seconds()) == (30, 20)
    path.write_text(configuration(parts, 6, 1, work, 100.0))
    hurried = load(path, {}).clusters["demo"].spec.policies[0].policy
    assert isinstance(hurried, Adaptive)
    assert (hurried.scale_down_window.total_seconds(), hurried.rescale_price.total_seconds()) == (8, 4)
    # A surge that is over is still in the window: until then a change from three to two workers must not be worth a
    # rescale.
    assert all(each.scale_down_window < 3 * each.rescale_price for each in (policy, hurried))


def test_the_page_of_a_run_has_the_records_of_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    output = tmp_path / "out"
    history = output / "work" / "autoscaler" / "history"
    history.mkdir(parents=True)
    options = parsed("--no-plot", "--open")
    made = Runner(Console(file=io.StringIO()), surge(), output, options)
    text = configuration(made._environment.parts, 6, 1, output / "work" / "autoscaler", 240.0)
    (output / "autoscaler.yaml").write_text(text)
    decision = Decision(cluster="demo", at=START, current=1, proposed=3, desired=3, reason=Reason.ABOVE)
    record = Record(Observation(at=START, desired=1, ready=1), decision)
    (history / "2026-01-05T00.jsonl").write_bytes(dump_record(record) + b"\n")
    page = made._open_page()
    assert page == output / "page.html"
    run = re.search(r'id="run">(.*?)</script>', page.read_text())
    assert run is not None
    assert [each["to"] for each in json.loads(run[1])["series"]["demo"]["decisions"]] == [3]


@pytest.mark.parametrize(
    ("engine", "package"), [("spark", "pyspark"), ("flink", "apache-flink-libraries"), ("flink", "javac")]
)
def test_missing_software_is_named_with_the_remedy(
    engine: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if package == "javac":
        monkeypatch.setattr("autoscaler.demo.flink.environment.flink_home", lambda: tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert run(parsed("--engine", engine, "--no-plot", "--output", str(tmp_path / "out"))) == 1
    said = capsys.readouterr().out
    assert package in said
    assert "pip install '.[" in said or "apt-get install openjdk-17-jdk-headless" in said


STATUS = Status(
    at=51.0,
    duration=240.0,
    phase="high load",
    rate=48.0,
    lag=204,
    desired=3,
    ready=1,
    decision="3 [are] needed",
    events=("46 s: 1 -> 3 workers",),
)


def test_without_a_terminal_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with live_view(Console(force_terminal=False, width=300)) as shown:
        shown.update(STATUS)
        shown.update(STATUS)
    said = capsys.readouterr().out.splitlines()
    assert said == ["46 s: 1 -> 3 workers", line(STATUS)]
    assert line(STATUS) == "   51 s  load   48/s  lag   204  workers 1 -> 3  high load: 3 [are] needed"


def test_unknown_numbers_are_shown_as_question_marks() -> None:
    unknown = replace(STATUS, lag=None, desired=None, ready=None)
    assert "lag     ?" in line(unknown)
    assert "workers ?" in line(unknown)


def test_on_a_terminal_a_table_is_printed() -> None:
    console = Console(width=100, file=io.StringIO())
    console.print(table(STATUS))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "48/s" in said
    assert "1 -> 3" in said
    assert "3 [are] needed" in said


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path / "logs", tmp_path / "pool")


def watch(processes: Processes) -> None:
    for _ in range(1000):
        processes.check()
        signal.sigtimedwait([], 0.01)


def test_a_process_that_ends_unexpectedly_is_reported_with_the_end_of_its_log(processes: Processes) -> None:
    processes.start("job", [sys.executable, "-S", "-c", "print('too bad'); raise SystemExit(3)"], {})
    with pytest.raises(DemoError, match=r"(?s)the job ended unexpectedly \(exit code 3\).*job\.log.*too bad"):
        watch(processes)
    processes.clear()


def test_a_missing_program_is_reported(processes: Processes) -> None:
    with pytest.raises(DemoError, match="the job cannot be started"):
        processes.start("job", ["/nonexistent"], {})


def test_cleaning_up_also_ends_stubborn_processes_and_their_children(processes: Processes) -> None:
    script = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.fork() or os.setsid()\nprint('up', flush=True)\ntime.sleep(60)"
    )
    processes.start("job", [sys.executable, "-S", "-c", script], {})
    for _ in range(1000):
        if processes.log("job").read_text().count("up") == 2:
            break
        signal.sigtimedwait([], 0.01)
    from autoscaler.targets.local.processes import family  # noqa: PLC0415 - only here

    assert len(family(processes._token)) == 2
    processes.clear(grace=0.2)
    assert family(processes._token) == []


def test_stopping_waits_for_a_graceful_end(processes: Processes) -> None:
    script = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(CODE))\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    for name, code in (("good", "0"), ("bad", "4")):
        processes.start(name, [sys.executable, "-S", "-c", script.replace("CODE", code)], {})
        while "up" not in processes.log(name).read_text():
            signal.sigtimedwait([], 0.01)
    processes.stop("good", 5)
    with pytest.raises(DemoError, match=r"the bad failed \(exit code 4\)"):
        processes.stop("bad", 5)
    processes.clear()


@pytest.mark.parametrize(
    ("answers", "facts"),
    [
        ([{"restarts": None, "checkpoints": 7}, {"restarts": 2, "checkpoints": 8}], {"restarts": 2, "checkpoints": 8}),
        ([{"failed_tasks": 0}], {"failed_tasks": 0}),
    ],
)
def test_the_facts_are_requested_until_all_are_available(answers: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    environment = cast("Environment", SimpleNamespace(facts=iter(answers).__next__))
    assert Environment.wait_for_facts(environment, 60.0, every=0.0) == facts


def test_facts_that_an_engine_never_reports_are_not_waited_for_forever() -> None:
    environment = cast("Environment", SimpleNamespace(facts=lambda: {"restarts": None}))
    assert Environment.wait_for_facts(environment, 0.05, every=0.01) == {"restarts": None}


def bare_runner(console: Console, tmp_path: Path, **attributes: Any) -> Runner:
    """A runner that has started nothing."""
    made = object.__new__(Runner)
    processes = SimpleNamespace(check=lambda: None, logs=tmp_path)
    given = {"_console": console, "_processes": processes, "_load": surge(), "_output": tmp_path, "_listen": "x:1"}
    for name, value in {**given, "_start": 0.0, "_observed": _Observed(), **attributes}.items():
        setattr(made, name, value)
    return made


def test_the_first_lines_omit_processes_that_are_not_ready_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "get", lambda *_: {"problem": "engine: Cannot connect to host 127.0.0.1:4040"})
    monkeypatch.setattr("time.sleep", lambda _: None)
    console = Console(file=io.StringIO(), width=200)
    bare_runner(console, tmp_path)._poll(LiveView(console, None), "starting")
    assert cast("io.StringIO", console.file).getvalue().rstrip().endswith("starting: no load yet")


def test_the_last_lines_say_what_to_do_next(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    made = bare_runner(console, tmp_path, _options=parsed("--no-plot"))
    result: dict[str, Any] = {"rescales": [], "job_scheduler": []}
    result |= {"first_scale_up_after_s": 1, "lag_back_after_s": 1, "simulated": None, "reasons": []}
    counts = dict.fromkeys(("peak_lag", "offered", "processed", "lost", "duplicated"), 0)
    made._print_summary(cast("Any", SimpleNamespace(facts={})), {**result, **counts, "ok": True})
    _, next_steps = cast("io.StringIO", console.file).getvalue().split("what to do next:\n")
    assert str(tmp_path / "autoscaler.yaml") in next_steps
    commands = re.findall(r"autoscaler (\w+) ", next_steps)
    assert commands == ["plugins", "check", "run", "explain"]
    assert set(commands) <= COMMANDS.keys()
