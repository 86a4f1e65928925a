"""The command line as used at a terminal or by a script."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autoscaler import cli, config, plugins

GOOD = """
daemon: {directory: var, listen: '127.0.0.1:0', log: json}
sources:
  prom: {type: prometheus, url: 'http://127.0.0.1:9', attempts: 1, timeout: 1s}
clusters:
  orders:
    interval: 2s
    timeout: 1500ms
    target: {type: advice, size: 2, follow: false}
    min: 3
    max: 5
    metrics: {cpu: {source: prom, query: cpu}}
    policies: {cpu: {type: target-tracking, metric: cpu, target: 0.5}}
  idle:
    interval: 2s
    timeout: 1500ms
    target: {type: advice, size: 2}
    min: 1
    max: 5
    metrics: {cpu: {source: prom, query: cpu, empty: zero}}
    policies: {cpu: {type: target-tracking, metric: cpu, target: 0.5}}
"""

BAD = """
daemon: {listen: '127.0.0.1:9'}
clusters:
  orders:
    targt: {type: advice}
    min: 5
    max: 3
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(BAD)
    return path


def test_check_accepts_a_valid_file(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(good)]) == 0
    assert capsys.readouterr().out == f"{good} is valid: 2 clusters: idle, orders\n"
    assert cli.main(["check", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "problems": [],
        "warnings": [],
        "clusters": ["idle", "orders"],
        "fleets": [],
    }


def test_check_warns_of_probable_mistakes(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good.write_text(good.read_text().replace("timeout: 1s}", "timeout: 1600ms}"))
    assert cli.main(["check", str(good)]) == 0
    printed = capsys.readouterr().out
    assert "is valid" in printed
    assert f"warning: {good}:" in printed
    assert "the timeout of the source prom (1s600ms) is above that of the cluster (1s500ms)" in printed
    assert cli.main(["check", str(good), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 2


def test_check_names_expired_tokens_and_accepts_the_file(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE", "a" * 16)
    tokens = "tokens: [{name: alice, rights: write, token: '${ALICE}', expires: 2026-01-31}]"
    good.write_text(good.read_text().replace("daemon: {", f"daemon: {{{tokens}, ", 1))
    assert cli.main(["check", str(good)]) == 0
    warning = f"{good}: daemon.tokens[0].expires: the token of alice has expired, at 2026-01-31 00:00:00 UTC"
    assert capsys.readouterr().out.startswith(f"warning: {warning}\n{good} is valid")
    assert cli.main(["check", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [warning]


@pytest.mark.parametrize("command", [["check"], ["run"], ["plan"], ["status"], ["check", "--online"]])
def test_an_invalid_file_gives_all_problems_and_exit_code_2(
    command: list[str], bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, str(bad)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "targt" in err
    assert "min" in err
    assert all(line.startswith(str(bad)) for line in err.splitlines())


def test_problems_as_json(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(bad), "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert any("targt" in problem for problem in answer["problems"])


def test_a_missing_file_is_a_configuration_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_an_online_check_reports_the_answer_of_each_plug_in(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--online", str(good)]) == 1
    out = capsys.readouterr().out
    rows = [line.split(maxsplit=3) for line in out.splitlines()]
    assert ["orders", "target", "ok", "The target has 2 replicas, all of them up."] in rows
    failed = [row for row in rows if row[:3] == ["orders", "cpu", "failed"]]
    assert "http://127.0.0.1:9" in failed[0][3]
    assert rows[-1] == ["2", "clusters,", "2", "readings failed, 0 findings."]
    assert cli.main(["check", "--online", str(good), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert "http://127.0.0.1:9" in answer["clusters"]["orders"]["doubts"]["cpu"]
    assert answer["clusters"]["orders"]["observation"]["ready"] == 2


def test_plan_reports_the_decision_and_changes_nothing(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(good)]) == 1  # a metric could not be read
    out = capsys.readouterr().out
    assert "cluster orders would be scaled up from 2 to 3" in out
    assert "cluster idle stays at 2" in out
    assert not (good.parent / "var").exists()
    assert cli.main(["plan", str(good), "--json"]) == 1
    plans = json.loads(capsys.readouterr().out)
    assert [plan["decision"]["cluster"] for plan in plans] == ["idle", "orders"]
    assert plans[1]["decision"]["desired"] == 3


@pytest.mark.parametrize("command", [["plan"], ["check", "--online"]])
def test_a_failed_connection_is_reported_once(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text("""
clusters:
  orders:
    target: {type: kubernetes, name: orders, kubeconfig: nowhere}
    max: 4
    policies: {calendar: {type: schedule, exclude: [{name: nights, start: "@daily", duration: 6h}]}}
""")
    done = subprocess.run(
        [sys.executable, "-m", "autoscaler", *command, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "Kubernetes cannot be connected" in done.stdout


def test_plugins_are_listed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins"]) == 0
    *lines, empty, hint = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert (empty, hint.startswith("autoscaler plugins NAME ")) == ("", True)
    words = [line.split()[:2] for line in lines]
    assert words == [[plugin.kind.noun, plugin.name] for plugin in plugins.installed()]
    for kind, name in (
        ("policy", "backlog-drain"),
        ("source", "prometheus"),
        ("target", "advice"),
        ("engine", "spark"),
        ("discovery", "flink-jobs"),
    ):
        assert [kind, name] in words
    assert cli.main(["plugins", "--json"]) == 0
    found = {(plugin["kind"], plugin["name"]): plugin for plugin in json.loads(capsys.readouterr().out)}
    url = next(p for p in found["source", "prometheus"]["parameters"] if p["name"] == "url")
    assert url["required"] is True
    assert any(parameter["name"] == "query" for parameter in found["source", "prometheus"]["query"])


def test_one_plugin_is_shown_with_all_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "hpa"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("policy hpa (reactive-autoscaler ")
    assert re.search(r"^metrics\[\]\.target +required +a number +its wanted value", out, re.MULTILINE)
    assert re.search(r"^behavior\.scale_down\.stabilization_window +5m +a duration", out, re.MULTILINE)


def test_a_source_is_shown_with_the_keys_of_a_metric_and_beside_its_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["plugins", "flink"]) == 0
    source, engine = capsys.readouterr().out.split("\nengine flink ")
    assert source.startswith("source flink ")
    assert "key of a metric" in source
    assert "key of a metric" not in engine
    assert cli.main(["plugins", "flink", "--json"]) == 0
    assert [plugin["kind"] for plugin in json.loads(capsys.readouterr().out)] == ["source", "engine"]


def test_a_discovery_is_shown_with_the_variables_of_a_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "flink-jobs"]) == 0
    assert capsys.readouterr().out.endswith("\n\nA template may name: id, name, state.\n")
    assert cli.main(["plugins", "flink-jobs", "--markdown"]) == 0
    assert capsys.readouterr().out.endswith("|\n\nA template may name `id`, `name`, `state`.\n")
    assert cli.main(["plugins", "kubernetes", "--json"]) == 0
    target, discovery = json.loads(capsys.readouterr().out)
    assert (target["kind"], target["variables"]) == ("target", [])
    assert discovery["variables"] == ["name", "namespace", "uid", "labels", "annotations"]


def test_the_keys_of_a_plugin_are_printed_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "advice", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out == (
        "| key | default | takes | meaning |\n"
        "|---|---|---|---|\n"
        "| `size` | `1` | whole number | the current number of replicas, 0 or more |\n"
        "| `follow` | `false` | true or false | whether advice counts as followed |\n"
    )
    assert cli.main(["plugins", "flink", "--markdown"]) == 0
    source, engine = capsys.readouterr().out.split("\n\nThe engine `flink`:\n\n")
    assert source.startswith("The source `flink`:\n\n| key | default |")
    assert "\n\n| key of a metric | default | takes | meaning |\n" in source
    assert all(line.count("|") == 5 for line in engine.replace("\\|", "").splitlines())
    assert cli.main(["plugins", "--markdown"]) == 1
    assert "give its NAME" in capsys.readouterr().err


def test_an_unknown_plugin_is_named_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "flnk-operator"]) == 1
    complaint = capsys.readouterr().err
    assert "no plug-in is called 'flnk-operator'" in complaint
    assert "did you mean 'flink-operator'?" in complaint


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == config.json_schema()


@pytest.mark.parametrize("command", [["status"], ["explain", "orders"]])
def test_without_a_daemon_there_is_a_clear_error(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command, "--url", "http://127.0.0.1:9"]) == 1
    assert "no daemon answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_a_daemon_on_a_random_port_must_be_named_by_url(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", str(good)]) == 1
    assert "pass it with --url" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["run"],
        ["explain", "a", "--last", "0"],
        ["explain", "a", "--at", "noon"],
        ["status", "--cluster", "a", "--filter", "a*"],
        ["status", "--watch", "--json"],
        ["explain", "a", "--last", "2", "--at", "2026-01-31T17:05:00Z"],
    ],
)
def test_wrong_usage_gives_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert "usage:" in capsys.readouterr().err


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("autoscaler ")


def test_help_is_quick_because_nothing_is_imported_for_it() -> None:
    code = (
        "import sys; from autoscaler import cli; cli.main(['--help']);"
        "print([m for m in ('pydantic', 'aiohttp', 'rich', 'yaml', 'prometheus_client') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_the_daemon_loads_no_unused_modules(good: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; from autoscaler import config; import autoscaler.daemon.service;"
        f"config.load(Path({str(good)!r}), os.environ);"
        "print([m for m in ('pandas', 'matplotlib', 'pyspark', 'numpy', 'rich.table') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "autoscaler", "schema"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "BadStatusLine"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"status": "up"}', "the answer has no 'clusters'"),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", "the answer has no 'clusters'"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html></html>", "no JSON"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{", "IncompleteRead"),
        (b"HTTP/1.0 502 Bad Gateway\r\n\r\n<html></html>", "502 Bad Gateway"),
    ],
)
def test_an_answer_from_another_server_is_reported(
    answer: bytes, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert cli.main(["status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 1
        thread.join()
    printed = capsys.readouterr().err
    assert "answers, but not like an autoscaler" in printed
    assert problem in printed
