"""The source `profile`: files that a job writes from time to time, read again when they change."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler.core.model import Direction
from autoscaler.core.workload_profile import Curve, Season, Spread, reading
from autoscaler.core.workload_profile import Profile as History
from autoscaler.ports import AnswerError, UnavailableError
from autoscaler.sources.profile import MAX_BYTES, Profile, Query
from autoscaler.testing import LocalShared
from autoscaler.trace import profile_file

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
WEEK = tuple(float(100 + hour) for hour in range(168))
MADE = History(
    cluster="orders",
    made_at=MONDAY,
    begin=MONDAY - timedelta(days=14),
    end=MONDAY,
    observations=80640,
    capacity=Curve(rate=120.0, exponent=0.9, rate_error=0.02, exponent_error=0.03),
    times={Direction.UP: {"start_up": Spread(40.0, 30.0, 60.0, 12), "stall": Spread(12.0, 9.0, 15.0, 12)}},
    season=Season(WEEK, WEEK, WEEK),
)


def write(directory: Path, made: History, *, seconds: int = 0) -> Path:
    path = directory / profile_file.file_name(made.cluster)
    path.write_text(profile_file.dump(made))
    os.utime(path, (1_767_571_200 + seconds,) * 2)
    return path


async def test_a_metric_is_the_present_value_of_the_profile(tmp_path: Path) -> None:
    write(tmp_path, MADE)
    now = MONDAY + timedelta(hours=30, minutes=30)
    async with LocalShared() as shared, Profile(tmp_path).connect(shared) as source:
        found = await source.collect(Query("orders"), now)
    assert found == reading(MADE, now)
    assert isinstance(found.value, tuple)
    assert found.value[0] == 130.0  # the middle of the hour that begins at 6:00 on Tuesday
    assert found.parts["up"] == {"start_up": 40.0, "stall": 12.0}


async def test_the_whole_profile_is_available_once_it_was_read(tmp_path: Path) -> None:
    write(tmp_path, MADE)
    async with LocalShared() as shared, Profile(tmp_path).connect(shared) as source:
        assert source.profile(Query("orders")) is None
        await source.collect(Query("orders"), MONDAY)
        assert source.profile(Query("orders")) == MADE


async def test_a_recreated_file_is_read_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, MADE)
    async with LocalShared() as shared, Profile(tmp_path).connect(shared) as source:
        await source.collect(Query("orders"), MONDAY)
        await source.collect(Query("orders"), MONDAY)
        assert not caplog.records
        anew = replace(MADE, capacity=Curve(rate=60.0, exponent=0.8, rate_error=0.02, exponent_error=0.03))
        write(tmp_path, anew, seconds=1)
        assert await source.collect(Query("orders"), MONDAY) == reading(anew, MONDAY)
    assert [record.message for record in caplog.records] == ["profile has changed"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": "autoscaler-profile", "version": 2}',
        profile_file.dump(MADE)[:-40],
        profile_file.dump(MADE).replace('"UTC"', '"Europe/Nowhere"'),
        "[" * 10**5,
        "x" * (MAX_BYTES + 1),
    ],
)
async def test_an_unreadable_file_is_logged_once_and_the_last_valid_profile_is_used(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, MADE)
    async with LocalShared() as shared, Profile(tmp_path).connect(shared) as source:
        await source.collect(Query("orders"), MONDAY)
        path.write_text(text)
        for _ in range(3):
            assert await source.collect(Query("orders"), MONDAY) == reading(MADE, MONDAY)
    assert [record.message for record in caplog.records] == ["profile cannot be read"]


async def test_without_a_valid_profile_the_error_names_the_file_and_the_problem(tmp_path: Path) -> None:
    async with LocalShared() as shared, Profile(tmp_path).connect(shared) as source:
        with pytest.raises(UnavailableError, match=r"orders\.json cannot be read: No such file.*autoscaler profile"):
            await source.collect(Query("orders"), MONDAY)
        (tmp_path / "orders.json").write_text('{"format": "autoscaler-profile", "version": 7}')
        with pytest.raises(AnswerError, match=r"orders\.json: version 7 of the profile format is not supported"):
            await source.collect(Query("orders"), MONDAY)


async def test_a_profile_whose_history_ended_long_ago_is_not_used(tmp_path: Path) -> None:
    write(tmp_path, MADE)
    async with LocalShared() as shared, Profile(tmp_path, timedelta(days=7)).connect(shared) as source:
        await source.collect(Query("orders"), MONDAY + timedelta(days=7))
        with pytest.raises(AnswerError, match=r"ended on 2026-01-05, longer ago than max_age \(7 days\)"):
            await source.collect(Query("orders"), MONDAY + timedelta(days=7, seconds=1))


async def test_unknown_parts_are_omitted(tmp_path: Path) -> None:
    write(tmp_path, History(cluster="orders", made_at=MONDAY, begin=MONDAY, end=MONDAY, observations=1))
    async with LocalShared() as shared, Profile(tmp_path).connect(shared) as source:
        found = await source.collect(Query("orders"), MONDAY)
    assert (set(found.value if isinstance(found.value, tuple) else ()), found.parts) == ({0.0}, {})


@pytest.mark.parametrize("cluster", ["a/b", "../x", ".hidden", "ä b", "x" * 40])
def test_any_cluster_name_gives_a_plain_file_name(cluster: str) -> None:
    name = profile_file.file_name(cluster)
    assert Path(name).name == name
    assert not name.startswith(".")


def test_invalid_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="max_age: must be above 0s"):
        Profile(Path(), timedelta(0))
    with pytest.raises(ValueError, match="cluster: must not be empty"):
        Query("")
