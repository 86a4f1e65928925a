"""The output of the demo's Flink job, and how it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.demo.flink.cluster import Job, compile_job, read_files, write_conf
from autoscaler.demo.processes import DemoError
from autoscaler.demo.sink import Arrival


def written(sink: Path, name: str, *lines: str) -> None:
    sink.mkdir(exist_ok=True)
    (sink / name).write_text("".join(f"{line}\n" for line in lines))


def test_only_committed_output_is_read_in_the_order_of_processing(tmp_path: Path) -> None:
    written(tmp_path / "sink", "part-a-0", "0,0,w1,10.500,0,1", "0,1,w1,12.000,2,1")
    written(tmp_path / "sink", "part-b-0", "1,0,w2,11.000,1,1")
    written(tmp_path / "sink", ".part-b-1.inprogress.5", "1,1,w2,13.000,3,1")
    found = read_files(tmp_path / "sink")
    assert found.arrivals == [Arrival(0, 0, "w1", 10.5), Arrival(1, 0, "w2", 11.0), Arrival(0, 1, "w1", 12.0)]
    assert found.miscounted == ()


@pytest.mark.parametrize("counts", [(1, 2, 2), (2, 3), (1, 3)])
def test_state_that_was_lost_or_applied_twice_is_detected(tmp_path: Path, counts: tuple[int, ...]) -> None:
    lines = [f"0,{number},w,1.0,7,{count}" for number, count in enumerate(counts)]
    written(tmp_path / "sink", "part-0", "0,9,w,1.0,8,1", *lines)
    assert read_files(tmp_path / "sink").miscounted == (7,)


def test_a_job_without_output_has_no_records(tmp_path: Path) -> None:
    assert read_files(tmp_path / "sink").arrivals == []


@pytest.mark.parametrize("line", ["0,1,w,1.0,3", "0,one,w,1.0,3,1", ""])
def test_a_foreign_line_is_an_error(tmp_path: Path, line: str) -> None:
    written(tmp_path / "sink", "part-0", "0,0,w,1.0,3,1", line)
    with pytest.raises(ValueError, match="part-0:2: not a line of the job"):
        read_files(tmp_path / "sink")


def test_flink_can_read_the_configuration(tmp_path: Path) -> None:
    import yaml  # noqa: PLC0415 - only here

    write_conf(tmp_path / "conf", {"rest.port": "1234", "heartbeat.timeout": "20s"})
    read = yaml.safe_load((tmp_path / "conf" / "config.yaml").read_text())
    assert (read["rest.port"], read["heartbeat.timeout"]) == ("1234", "20s")
    assert read["scheduler-mode"] == "reactive"


def test_the_job_gets_all_arguments(tmp_path: Path) -> None:
    job = Job(name="n", clock=tmp_path / "clock", sink=tmp_path / "a sink")
    output = dict(zip(job.arguments()[::2], job.arguments()[1::2], strict=True))
    assert output["--sink"].endswith("/a%20sink")
    assert (output["--name"], output["--partitions"], output["--cost"]) == ("n", "6", "45")


def test_a_job_that_does_not_compile_fails_with_the_reason(tmp_path: Path) -> None:
    javac = tmp_path / "bin" / "javac"
    javac.parent.mkdir()
    javac.write_text("#!/bin/sh\necho 'VirtualLogJob.java:3: error: no Flink' >&2\nexit 1\n")
    javac.chmod(0o755)
    with pytest.raises(DemoError, match="error: no Flink"):
        compile_job(tmp_path, tmp_path, tmp_path / "job")
