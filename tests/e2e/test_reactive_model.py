"""The state machine of Flink's adaptive scheduler against a real Flink in Reactive Mode.

TaskManagers are added, stopped and killed. The job must be stopped and deployed at the times and with the parallelism
that the state machine gives. Times are known to the polling resolution: two polls of the JobManager's REST API are a
tenth of a second apart, and a poll takes a few hundredths. The time of Flink's own steps, which the state machine takes
as zero, comes on top.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.flink_cluster import FlinkCluster, flink_cluster
from tests.e2e.flink_recorder import RECORDED, Recorder, recorded
from tests.schedulers.recorded import differences

pytestmark = pytest.mark.e2e

ADAPTIVE = "jobmanager.adaptive-scheduler"
# Seconds. A rescale waits for a checkpoint, and the test triggers one long before the maximum delay. With a checkpoint
# every other second it was random whether Flink, which needs a moment more than its timers, was ready for it.
BY_CHECKPOINT = {
    f"{ADAPTIVE}.executing.cooldown-after-rescaling": 9.0,
    f"{ADAPTIVE}.executing.resource-stabilization-timeout": 3.0,
    f"{ADAPTIVE}.rescale-trigger.max-delay": 60.0,
    f"{ADAPTIVE}.submission.resource-stabilization-timeout": 0.0,
    "execution.checkpointing.interval": 86_400.0,
    "heartbeat.interval": 1.0,
    "heartbeat.timeout": 10.0,
    # Between a kill and its detection Flink may restart the job in vain, and then wait for this delay, or may not: that
    # depends on whether the dead worker's connection was refused before the tasks were cancelled.
    "restart-strategy.exponential-delay.initial-backoff": 0.5,
    "restart-strategy.exponential-delay.max-backoff": 0.5,
}
# The only checkpoint is the one after each restore: it starts the maximum delay.
BY_DELAY = BY_CHECKPOINT | {
    f"{ADAPTIVE}.executing.cooldown-after-rescaling": 5.0,
    f"{ADAPTIVE}.executing.resource-stabilization-timeout": 1.0,
    f"{ADAPTIVE}.rescale-trigger.max-delay": 6.0,
    # On a busy machine one of two TaskManagers that are started together registers seconds after the other.
    f"{ADAPTIVE}.submission.resource-stabilization-timeout": 15.0,
    "restart-strategy.exponential-delay.initial-backoff": 1.0,
    "restart-strategy.exponential-delay.max-backoff": 5.0,
}
# Seconds that Flink may need in total between a timer and the deployment: observed were 0.1 to 0.3, and up to 0.6 for
# the first one on an overloaded machine.
SLACK = 1.0
# Random, not a rule: a tenth more or less.
NO_JITTER = {"restart-strategy.exponential-delay.jitter-factor": "0"}


def by_checkpoint(flink: FlinkCluster, recorder: Recorder) -> None:
    # There is none at first: the job waits.
    flink.start_task_manager(1)
    recorder.runs_with(1)
    # Two at once, after the cooldown: one rescale, and not with a checkpoint before the slots are stable.
    recorder.ran_for(10)
    flink.start_task_manager(2)
    flink.start_task_manager(3)
    recorder.holds_others_than(1)
    recorder.checkpoint()
    recorder.holds(3)
    recorder.held_for(5)
    recorder.checkpoint()
    recorder.runs_with(3)
    # One more, in the cooldown.
    flink.start_task_manager(4)
    recorder.holds(4)
    recorder.checkpoint()
    recorder.ran_for(14)
    recorder.held_for(5)
    recorder.checkpoint()
    recorder.runs_with(4)
    recorder.ran_for(2)
    # One is stopped gracefully, and one is killed: Flink waits for its heartbeat.
    recorder.stop(4)
    recorder.runs_with(3)
    recorder.ran_for(2)
    recorder.kill(3)
    recorder.runs_with(2)
    recorder.ran_for(2)


def by_delay(flink: FlinkCluster, recorder: Recorder) -> None:
    # Two at once, while the job waits: it starts with both.
    flink.start_task_manager(1)
    flink.start_task_manager(2)
    recorder.runs_with(2)
    recorder.ran_for(6)
    flink.start_task_manager(3)
    recorder.runs_with(3)
    # One comes and another goes before the job was rescaled for it.
    flink.start_task_manager(4)
    recorder.holds(4)
    recorder.stop(3)
    recorder.runs_with(3)
    recorder.ran_for(2)
    # One leaves and none comes: the delay before the restart has grown.
    recorder.stop(4)
    recorder.runs_with(2)
    recorder.ran_for(2)


def as_flink_has_them(settings: dict[str, float]) -> dict[str, str]:
    return {name: f"{round(seconds * 1000)}ms" for name, seconds in settings.items()}


@pytest.mark.parametrize(
    ("settings", "act", "parallelism"),
    [
        pytest.param(BY_CHECKPOINT, by_checkpoint, [1, 3, 4, 3, 2], id="by checkpoint"),
        pytest.param(BY_DELAY, by_delay, [2, 3, 3, 2], id="by delay"),
    ],
)
def test_a_real_flink_stops_and_deploys_the_job_when_the_state_machine_does(
    tmp_path: Path,
    settings: dict[str, float],
    act: Callable[[FlinkCluster, Recorder], None],
    parallelism: list[int],
) -> None:
    with flink_cluster(tmp_path, {**as_flink_has_them(settings), **NO_JITTER, **RECORDED}, cost=1) as flink:
        flink.task_manager_sizes()
        flink.start_job_manager()
        flink.offer(20.0)
        with recorded(flink) as recorder:
            act(flink, recorder)
        timeline = recorder.timeline(settings)
    (tmp_path / "timeline.json").write_text(timeline.to_json())
    # The actions had their intended effects.
    assert [each.parallelism for each in timeline.deployments if each.restored] == parallelism
    found = differences(timeline)
    assert [each for each in found if abs(each[1]) > SLACK] == []
