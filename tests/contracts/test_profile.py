"""The source `profile` keeps the contract of sources."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler.core.workload_profile import Profile as History
from autoscaler.core.workload_profile import Season
from autoscaler.sources.profile import Profile, Query
from autoscaler.testing import SourceContract
from autoscaler.trace import profile_file


class TestProfile(SourceContract):
    @pytest.fixture
    def plugin(self, tmp_path: Path) -> Profile:
        now = datetime.now(UTC)  # noqa: TID251 - the contract uses readings of now
        made = History(
            cluster="orders",
            made_at=now,
            begin=now - timedelta(days=14),
            end=now,
            observations=80640,
            season=Season((5.0,), (5.0,), (5.0,)),
        )
        (tmp_path / profile_file.file_name("orders")).write_text(profile_file.dump(made))
        return Profile(tmp_path)

    @pytest.fixture
    def query(self) -> Query:
        return Query("orders")

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Profile:
        return Profile(tmp_path / "nothing")
