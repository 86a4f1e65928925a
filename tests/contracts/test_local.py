"""The target `local` keeps the contract of targets, with real Spark workers without a Master, and with Flink."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.demo.flink.cluster import TASK_MANAGER_MEMORY, write_conf
from autoscaler.ports import RefusedError
from autoscaler.targets.local.pool import stop_workers
from autoscaler.targets.local.target import Local, WorkerKind
from autoscaler.targets.local.workers import flink_home
from autoscaler.testing import TargetContract


class TestLocal(TargetContract):
    @pytest.fixture
    def plugin(self, tmp_path: Path) -> Iterator[Local]:
        plugin = Local(
            directory=tmp_path,
            master="spark://127.0.0.1:1",
            memory="512m",
            drain=timedelta(seconds=2),
            grace=timedelta(seconds=2),
        )
        yield plugin
        stop_workers(tmp_path)  # workers survive the context, so the test has to end them

    @pytest.fixture
    def sizes(self) -> Sequence[int]:
        return (1, 2, 0)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Local:
        return Local(directory=tmp_path / "file" / "below", master="spark://127.0.0.1:1")

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()  # no pool can be created below it


@pytest.mark.e2e
class TestLocalFlink(TargetContract):
    """The same with real TaskManagers without a JobManager."""

    @pytest.fixture
    def plugin(self, tmp_path: Path) -> Iterator[Local]:
        try:
            flink_home()
        except RefusedError as error:
            if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
                pytest.fail(str(error))
            pytest.skip(str(error))
        write_conf(tmp_path / "conf", {"jobmanager.rpc.port": "1"})
        yield Local(
            directory=tmp_path / "pool",
            kind=WorkerKind.FLINK_TASKMANAGER,
            flink_conf=str(tmp_path / "conf"),
            memory=TASK_MANAGER_MEMORY,
            grace=timedelta(seconds=2),
        )
        stop_workers(tmp_path / "pool")

    @pytest.fixture
    def sizes(self) -> Sequence[int]:
        return (1, 2, 0)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Local:
        return Local(directory=tmp_path / "file" / "below", kind=WorkerKind.FLINK_TASKMANAGER)

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
