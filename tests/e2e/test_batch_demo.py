"""The demo with a batch job, with tables of a quarter of the size: too short to save anything, otherwise the same."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from autoscaler.demo.spark_batch.runner import BatchRunner
from tests.demo.test_demo_options import parsed
from tests.e2e.test_demo import left_behind, require_demo

pytestmark = pytest.mark.e2e

SCALE = 1.0


def test_workers_follow_a_batch_job_and_its_output_stays_the_same(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    require_demo(tmp_path_factory)
    console = Console(file=io.StringIO(), width=200)
    result = BatchRunner(console, tmp_path, parsed("--engine", "spark-batch"), SCALE).run()
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert result["results_equal"]
    ours, fixed = result["autoscaler"], result["fixed"]
    assert (ours["failed_tasks"], ours["repeated_stages"], ours["workers_left"]) == (0, [], 0)
    sizes = [(each["before"], each["to"]) for each in ours["rescales"]]
    # From zero at the first stage, and back to zero after the job at the latest.
    assert sizes[0][0] == 0
    assert sizes[-1][1] == 0
    assert fixed["rescales"] == []
    assert fixed["most_workers"] == 4
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert {"autoscaler.yaml", "fixed.yaml", "plot.png", "result.json"} <= {path.name for path in tmp_path.iterdir()}
    assert left_behind(tmp_path) == []
