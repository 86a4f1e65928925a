"""`autoscaler simulate --jobs`: batch jobs on a simulated cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autoscaler import cli
from autoscaler.trace.format import read

CONFIG = """
sources: {stats: {type: http, url: 'http://127.0.0.1:9'}}
clusters:
  nightly:
    interval: 5s
    target: {type: advice}
    min: 1
    max: 8
    slots_per_replica: 2
    metrics:
      running_tasks: {source: stats, path: running}
      waiting: {source: stats, path: pending}
    policies: {main: {type: hpa, metrics: [{type: value_per_replica, metric: waiting, target: 2}]}}
    down: {window: 30s}
"""

JOBS = """
migrate: false
jobs:
  - name: report
    stages:
      - {tasks: 60, task_time: 10s}
      - {tasks: 20, task_time: 10s, skew: 8, driver_time: 1m}
  - at: 5m
    stages: [{tasks: 30, task_time: 10s}]
"""

WITH_METRIC = ("--metric", "waiting=pending_tasks")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS)
    return path


def simulate(*arguments: object) -> int:
    return cli.main(["simulate", *map(str, arguments)])


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert simulate(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_the_jobs_are_compared_with_a_fixed_cluster_and_dynamic_allocation(
    config: Path, jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(config, *WITH_METRIC, "--jobs", jobs) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[0] == (
        f"Cluster nightly of {config}, 1 to 8 workers, 2 tasks at a time on each, on the simulated cluster k8s:"
    )
    assert lines[1] == "  workers are ready after 30 s; the shuffle files of one that leaves are lost."
    assert lines[2] == f"Jobs of {jobs}: 2 with 3 stages, 110 tasks, 1170 s of work. Seed 1."
    assert re.fullmatch(r" +nightly +always 8 +dynamic allocation", lines[4])
    assert [re.split(r"  +", line.strip())[0] for line in lines[5:11]] == [
        "worker-seconds",
        "relative to what the tasks need",
        "time of report",
        "time of job 2",
        "tasks that ran again",
        "changes of size",
    ]
    assert re.search(r"^time of report +\d:\d\d:\d\d +0:03:00 +\d:\d\d:\d\d$", shown.out, re.MULTILINE)
    assert re.search(r"^\d:\d\d:\d\d +\d to \d +above +main: ", shown.out, re.MULTILINE)


def test_a_seed_gives_the_same_result_twice_and_json_has_everything_that_is_printed(
    config: Path, jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (config, *WITH_METRIC, "--jobs", jobs)
    first, again, other = (as_json(capsys, *given, "--seed", seed, "--explain") for seed in (1, 1, 2))
    assert first == again
    assert first["results"] != other["results"]
    assert first["cluster"] == "nightly"
    assert first["plant"] == {"name": "k8s", "startup": 30, "startup_sd": 0.25}
    assert first["jobs"] == [
        {"name": "report", "at": 0, "task_seconds": 870},
        {"name": "", "at": 300, "task_seconds": 300},
    ]
    assert (first["migrate"], first["deadline"]) == (False, None)
    assert first["metrics"] == {"running_tasks": "running_tasks", "waiting": "pending_tasks"}
    assert list(first["results"]) == ["nightly", "always 8", "dynamic allocation"]
    fixed = first["results"]["always 8"]
    assert (fixed["worker_seconds"], fixed["job_times"]) == (8 * 320, [180, 20])
    assert (fixed["tasks"], fixed["repeated"], fixed["changes"], fixed["late"]) == (110, 0, 0, None)
    assert "What the policies asked for:" in first["rescales"][0]["explanation"]


def test_if_files_are_migrated_dynamic_allocation_is_also_shown_without_shuffle_tracking(
    config: Path, jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.write_text(JOBS.replace("migrate: false", "migrate: true"))
    found = as_json(capsys, config, *WITH_METRIC, "--jobs", jobs)["results"]
    assert list(found)[-1] == "without shuffle tracking"
    assert found["without shuffle tracking"]["worker_seconds"] <= found["dynamic allocation"]["worker_seconds"]


def test_jobs_that_miss_the_deadline_of_a_policy_are_counted(
    config: Path, jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = CONFIG.partition("      running_tasks:")[0]
    names = ("pending_tasks", "running_tasks", "remaining_task_time", "shuffle_workers", "job_time")
    metrics = "".join(f"      {name}: {{source: stats, path: {name}}}\n" for name in names)
    config.write_text(f"{before}{metrics}    policies: {{main: {{type: batch, deadline: 2m}}}}\n")
    found = as_json(capsys, config, "--jobs", jobs)
    assert found["deadline"] == 120
    assert found["results"]["always 8"]["late"] == 1
    assert simulate(config, "--jobs", jobs) == 0
    assert re.search(r"^jobs that took more than 2m +\d +1 +\d$", capsys.readouterr().out, re.MULTILINE)


def test_workers_start_as_the_plant_says(config: Path, jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (config, *WITH_METRIC, "--jobs", jobs)
    quick, slow = (
        as_json(capsys, *given, "--plant", plant)["results"]["dynamic allocation"] for plant in ("k8s", "ec2")
    )
    assert quick["job_times"][0] < slow["job_times"][0]


def test_a_job_that_never_finishes_is_shown_as_such(
    config: Path, jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("min: 1", "min: 0"))
    plant = tmp_path / "plant.yaml"
    plant.write_text("never: 1\n")
    assert simulate(config, *WITH_METRIC, "--jobs", jobs, "--plant", plant) == 0
    assert re.search(r"^time of job 2 +not done +0:00:20 +not done", capsys.readouterr().out, re.MULTILINE)


def test_a_long_list_of_jobs_is_cut_and_can_be_shown_completely(
    config: Path, jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.write_text("jobs:\n" + "  - {stages: [{tasks: 1, task_time: 1s}]}\n" * 40)
    assert simulate(config, *WITH_METRIC, "--jobs", jobs) == 0
    assert "... and 10 more jobs: --all lists them" in capsys.readouterr().out
    assert simulate(config, *WITH_METRIC, "--jobs", jobs, "--all") == 0
    assert "time of job 40" in capsys.readouterr().out


def test_decisions_are_recorded_like_those_of_a_daemon_and_explained(
    config: Path, jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace"
    assert simulate(config, *WITH_METRIC, "--jobs", jobs, "--record", trace, "--explain") == 0
    assert "2026-01-05 00:00:" in capsys.readouterr().out
    records = list(read(trace))
    assert all(set(record.observation.metrics) == {"running_tasks", "waiting"} for record in records)
    assert all(record.observation.engine is None for record in records)
    assert cli.main(["replay", str(trace), str(config)]) == 0


def test_a_picture_is_drawn(config: Path, jobs: Path, tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    assert simulate(config, *WITH_METRIC, "--jobs", jobs, "--plot", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--hours", 1),
        ("--peak", 9),
        ("--rate-per-worker", 9),
        ("--faults", "all"),
        ("--optimum", ""),
        ("--traces", "x"),
    ],
)
def test_an_option_of_a_load_is_refused_by_name(
    config: Path, jobs: Path, capsys: pytest.CaptureFixture[str], option: str, value: object
) -> None:
    assert simulate(config, *WITH_METRIC, "--jobs", jobs, option, *([value] if value else [])) == 2
    assert capsys.readouterr().err == f"{option}: applies to a load, not to --jobs\n"


def test_the_directory_of_loads_may_be_set_in_the_environment(
    config: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSCALER_TRACES", "traces")
    assert simulate(config, *WITH_METRIC, "--jobs", jobs) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "one of the arguments --load --jobs is required"),
        (("--jobs", "x", "--load", "steps6h"), "argument --load: not allowed with argument --jobs"),
    ],
)
def test_a_load_or_jobs_are_required(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert simulate(config, *arguments) == 2
    assert expected in capsys.readouterr().err


def test_a_metric_that_batch_jobs_lack_is_an_error_that_lists_theirs(
    config: Path, jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(config, "--jobs", jobs) == 2
    assert capsys.readouterr().err == (
        f"{config}: metric waiting of nightly: the simulated cluster has pending_tasks, running_tasks, "
        "remaining_task_time, shuffle_workers, job_time; set which of them it is, like --metric waiting=pending_tasks\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "1: (file): there is no such file"),
        ("jobs: []\n", "1: jobs: must have at least one"),
        ("jobs:\n  - stages: []\n", "2: jobs[0].stages: must have at least one"),
        ("jobs:\n  - {}\n", "2: jobs[0].stages: missing; expected a list"),
        (
            "jobs:\n  - stages:\n    - {tasks: 0, task_time: 1s}\n",
            "3: jobs[0].stages[0].tasks: is 0, expected 1 to 1000000",
        ),
        ("jobs:\n  - stages:\n    - {tasks: 4, task_time: 10}\n", "3: jobs[0].stages[0].task_time: 10 has no unit"),
        (
            "jobs:\n  - stages:\n    - {task: 4, task_time: 1s}\n",
            "3: jobs[0].stages[0].task: unknown key; did you mean",
        ),
        ("jobs:\n  - stages: [{tasks: 4, task_time: 1s}]\n    at: -1s\n", "3: jobs[0].at: "),
        ("jobs:\n  - stages: [{tasks: 4, task_time: 1s, skew: 0}]\n", "2: jobs[0].stages[0].skew: is 0, expected 1 or"),
        ("jobs:\n  - stages: [{tasks: 4, task_time: 1s}]\nmigrate: maybe\n", "3: migrate: expected true or false"),
        ("jobs:\n  - stages: [{tasks: 4, task_time: 1s}]\nmigrate: true\nmigrate: true\n", "4: migrate: duplicate key"),
    ],
)
def test_an_invalid_file_of_jobs_is_reported_with_its_line(
    config: Path, jobs: Path, capsys: pytest.CaptureFixture[str], text: str | None, expected: str
) -> None:
    jobs.unlink()
    if text is not None:
        jobs.write_text(text)
    assert simulate(config, *WITH_METRIC, "--jobs", jobs) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{jobs}:{expected}" in shown.err
