"""The target `local` keeps the contract of targets, with real Spark workers that find no Master."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.targets.local import Local
from autoscaler.targets.pool import stop_workers
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
        stop_workers(tmp_path)  # workers outlive the context, so the test has to end them

    @pytest.fixture
    def sizes(self) -> Sequence[int]:
        return (1, 2, 0)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Local:
        return Local(directory=tmp_path / "file" / "below", master="spark://127.0.0.1:1")

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()  # no pool can be made below it
