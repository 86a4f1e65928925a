"""The state machine against recordings of a real Flink 2.3.

`tests/e2e/test_reactive_model.py` writes the recordings to its temporary directory; `every_other_second` is an older
one, from before the test requested its own checkpoints.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.schedulers.recorded import Timeline, differences, modelled

RECORDINGS = {
    name: Timeline.from_json((Path(__file__).parent / "data" / f"flink_{name}.json").read_text())
    for name in ("by_checkpoint", "every_other_second", "by_delay")
}
# Seconds that Flink needed beyond its timers: to offer a slot, to cancel tasks, to build a graph.
SLACK = 0.3
ADAPTIVE = "jobmanager.adaptive-scheduler"
BACKOFF = "restart-strategy.exponential-delay"


def wrong(timeline: Timeline) -> list[tuple[str, float]]:
    return [each for each in differences(timeline) if abs(each[1]) > SLACK]


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_job_is_stopped_and_deployed_at_the_times_of_a_real_flink(name: str) -> None:
    assert wrong(RECORDINGS[name]) == []


@pytest.mark.parametrize("name", RECORDINGS)
def test_polling_leaves_little_uncertainty(name: str) -> None:
    recording = RECORDINGS[name]
    early, late = modelled(recording, late=False), modelled(recording, late=True)
    assert recording.resolution < 0.4
    # Only the exact time at which a killed worker is noticed is random: one heartbeat and one delay more or less.
    killed = [each.at for each in recording.killed]
    for first, last in zip(early, late, strict=True):
        after_kill = any(first.at.latest - 10 < at < first.at.latest for at in killed)
        assert last.at.latest - first.at.earliest < (1.9 if after_kill else 0.4)


@pytest.mark.parametrize(
    ("name", "setting", "seconds"),
    [
        ("by_checkpoint", f"{ADAPTIVE}.executing.cooldown-after-rescaling", 15.0),
        ("by_checkpoint", f"{ADAPTIVE}.executing.resource-stabilization-timeout", 6.0),
        ("by_checkpoint", f"{ADAPTIVE}.rescale-trigger.max-delay", 3.0),
        ("by_checkpoint", f"{ADAPTIVE}.submission.resource-stabilization-timeout", 1.0),
        ("by_checkpoint", "heartbeat.timeout", 12.0),
        ("by_checkpoint", f"{BACKOFF}.max-backoff", 0.1),
        ("every_other_second", f"{ADAPTIVE}.executing.cooldown-after-rescaling", 12.0),
        ("every_other_second", f"{ADAPTIVE}.executing.resource-stabilization-timeout", 6.0),
        ("every_other_second", f"{ADAPTIVE}.rescale-trigger.max-delay", 3.0),
        ("every_other_second", f"{ADAPTIVE}.submission.resource-stabilization-timeout", 1.0),
        ("every_other_second", "heartbeat.timeout", 12.0),
        ("every_other_second", f"{BACKOFF}.max-backoff", 0.1),
        ("by_delay", f"{ADAPTIVE}.executing.resource-stabilization-timeout", 7.0),
        ("by_delay", f"{ADAPTIVE}.rescale-trigger.max-delay", 5.0),
        ("by_delay", f"{ADAPTIVE}.submission.resource-stabilization-timeout", 3.0),
        ("by_delay", f"{BACKOFF}.initial-backoff", 1.5),
        ("by_delay", f"{BACKOFF}.max-backoff", 1.0),
    ],
)
def test_the_recordings_show_each_rule(name: str, setting: str, seconds: float) -> None:
    recording = RECORDINGS[name]
    other = replace(recording, settings={**recording.settings, setting: seconds})
    try:
        found = wrong(other)
    except AssertionError:
        return
    assert found


@pytest.mark.parametrize("name", ["by_checkpoint", "every_other_second"])
def test_the_recordings_show_that_a_rescale_waits_for_a_checkpoint(name: str) -> None:
    with pytest.raises(AssertionError, match="early, real, late"):
        differences(replace(RECORDINGS[name], checkpoints=()))


@pytest.mark.parametrize("name", ["by_checkpoint", "every_other_second"])
def test_the_recordings_include_a_worker_that_comes_during_the_cooldown(name: str) -> None:
    recording = RECORDINGS[name]
    second = recording.deployments[1].at.latest
    cooldown = recording.settings[f"{ADAPTIVE}.executing.cooldown-after-rescaling"]
    assert any(second < each.span.earliest and each.span.latest < second + cooldown for each in recording.slots)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_survives_writing_and_reading(name: str) -> None:
    assert Timeline.from_json(RECORDINGS[name].to_json()) == RECORDINGS[name]
