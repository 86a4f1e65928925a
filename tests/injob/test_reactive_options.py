"""The options of a reactive job, with Flink's names."""

from __future__ import annotations

import math
import zipfile
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.injob.reactive.options import REACTIVE, REPARTITIONS, UNUSED, Options, OptionsError
from autoscaler.schedulers.flink import MAX_PARALLELISM, FlinkSettings, Restart, Rules
from autoscaler.schedulers.slots import Bounds

SCHEDULER = "jobmanager.adaptive-scheduler."
EXPONENTIAL = "restart-strategy.exponential-delay."

OPTIONS = [
    ("pipeline.max-parallelism", 128, "max_parallelism", 128),
    ("pipeline.max-parallelism", -1, "max_parallelism", None),
    (SCHEDULER + "submission.resource-wait-timeout", "5 min", "resource_wait_timeout", 300.0),
    (SCHEDULER + "submission.resource-wait-timeout", "-1", "resource_wait_timeout", math.inf),
    (SCHEDULER + "submission.resource-wait-timeout", "-1 ms", "resource_wait_timeout", math.inf),
    (SCHEDULER + "resource-wait-timeout", "1 h", "resource_wait_timeout", 3600.0),
    (SCHEDULER + "submission.resource-stabilization-timeout", "10 s", "resource_stabilization_timeout", 10.0),
    (SCHEDULER + "resource-stabilization-timeout", "7s", "resource_stabilization_timeout", 7.0),
    (SCHEDULER + "executing.resource-stabilization-timeout", "2 minutes", "executing_stabilization", 120.0),
    (SCHEDULER + "executing.cooldown-after-rescaling", "PT45S", "cooldown", 45.0),
    (SCHEDULER + "scaling-interval.min", "500ms", "cooldown", 0.5),
    (SCHEDULER + "scaling-interval.max", "1 d", "scaling_interval_max", 86400.0),
    (SCHEDULER + "min-parallelism-increase", "3", "min_parallelism_increase", 3),
    (SCHEDULER + "rescale-trigger.max-delay", 1500, "max_delay", 1.5),
    (SCHEDULER + "rescale-trigger.max-checkpoint-failures", 4, "max_checkpoint_failures", 4),
    ("heartbeat.timeout", 50000, "heartbeat_timeout", 50.0),
    ("restart-strategy.type", "exponential-delay", "restart", Restart.EXPONENTIAL),
    ("restart-strategy.type", "fixeddelay", "restart", Restart.FIXED),
    ("restart-strategy.type", "off", "restart", Restart.NONE),
    ("restart-strategy", "none", "restart", Restart.NONE),
    (EXPONENTIAL + "initial-backoff", "2 s", "initial_backoff", 2.0),
    (EXPONENTIAL + "max-backoff", "5 min", "max_backoff", 300.0),
    (EXPONENTIAL + "backoff-multiplier", "2.0", "backoff_multiplier", 2.0),
    (EXPONENTIAL + "reset-backoff-threshold", "10 min", "reset_backoff_threshold", 600.0),
    (EXPONENTIAL + "jitter-factor", 0.25, "jitter_factor", 0.25),
    (EXPONENTIAL + "attempts-before-reset-backoff", 10, "attempts_before_reset", 10),
    (EXPONENTIAL + "attempts-before-reset-backoff", "2147483647", "attempts_before_reset", math.inf),
    ("restart-strategy.fixed-delay.delay", "3 s", "fixed_delay", 3.0),
    ("restart-strategy.fixed-delay.attempts", 5, "fixed_attempts", 5),
]


@pytest.mark.parametrize(("key", "value", "field", "expected"), OPTIONS)
def test_an_option_is_read_from_a_flink_configuration(key: str, value: str | float, field: str, expected: Any) -> None:
    assert getattr(Options.of({key: value}), field) == expected


def test_the_defaults_are_those_of_flink_in_reactive_mode_except_for_the_heartbeat() -> None:
    settings = Options().flink_settings()

    groups = ((Bounds(1, MAX_PARALLELISM),),)
    expected = FlinkSettings.of("2.3", checkpoint_interval=60, max_delay=0.0, heartbeat=10.0, groups=groups)
    assert settings == expected
    assert settings.rules is Rules.STABILIZED
    assert Options.of({}) == Options()


def test_the_newer_name_of_an_option_takes_precedence() -> None:
    both = {SCHEDULER + "scaling-interval.min": "1 s", SCHEDULER + "executing.cooldown-after-rescaling": "2 s"}

    assert Options.of(both).cooldown == 2


def test_arguments_of_the_author_override_the_configuration() -> None:
    assert Options.of(
        {"pipeline.max-parallelism": 8, "heartbeat.timeout": "x"}, max_parallelism=4, heartbeat_timeout=5
    ) == (Options(max_parallelism=4, heartbeat_timeout=5))


def test_unrelated_options_are_ignored() -> None:
    others: dict[str, str | float] = {
        "scheduler-mode": "reactive",
        "jobmanager.scheduler": "adaptive",
        "parallelism.default": 1,
        "taskmanager.numberOfTaskSlots": 4,
        **dict.fromkeys(UNUSED, "true"),
    }

    assert Options.of(others) == Options()


def test_all_problems_of_a_configuration_are_listed_at_once() -> None:
    conf = {
        SCHEDULER + "executing.cooldown-after-rescalin": "3 s",
        "restart-strategy.type": "failure-rate",
        EXPONENTIAL + "initial-backoff": "soon",
        EXPONENTIAL + "jitter-factor": "1.5",
        SCHEDULER + "rescale-trigger.max-delay": "-5 s",
    }

    with pytest.raises(OptionsError) as caught:
        Options.of(conf, min_slots=4, preferred_slots=2)

    problems = caught.value.problems
    assert len(problems) == 6
    assert f"correct it to {SCHEDULER}executing.cooldown-after-rescaling" in problems[0]
    assert "expected exponential-delay, fixed-delay or none" in problems[1]
    assert f"{EXPONENTIAL}initial-backoff: is 'soon', expected a time like 10 s or PT10S" in problems[2]
    assert "max_delay (jobmanager.adaptive-scheduler.rescale-trigger.max-delay): is -5.0" in problems[3]
    assert "jitter_factor (restart-strategy.exponential-delay.jitter-factor): is 1.5" in problems[4]
    assert problems[5] == "min_slots: is 4, above preferred_slots, which is 2; lower min_slots or raise preferred_slots"
    assert all(problem in str(caught.value) for problem in problems)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"min_slots": 0}, "min_slots"),
        ({"min_slots": True}, "min_slots"),
        ({"min_slots": 1.5}, "min_slots"),
        ({"min_slots": None}, "min_slots"),
        ({"min_slots": "2"}, "min_slots"),
        ({"preferred_slots": 0}, "preferred_slots"),
        ({"preferred_slots": MAX_PARALLELISM + 1}, "preferred_slots"),
        ({"max_parallelism": -1}, "max_parallelism"),
        ({"resource_stabilization_timeout": -1}, "resource_stabilization_timeout"),
        ({"resource_stabilization_timeout": math.nan}, "resource_stabilization_timeout"),
        ({"executing_stabilization": math.inf}, "executing_stabilization"),
        ({"cooldown": -0.1}, "cooldown"),
        ({"scaling_interval_max": 5.0}, "cooldown"),
        ({"min_parallelism_increase": 0}, "min_parallelism_increase"),
        ({"max_delay": -1.0}, "max_delay"),
        ({"max_checkpoint_failures": 0}, "max_checkpoint_failures"),
        ({"max_commit_age": 0}, "max_commit_age"),
        ({"max_commit_age": None}, "max_commit_age"),
        ({"heartbeat_timeout": 1.0}, "heartbeat_timeout"),
        ({"repartition_state": "always"}, "repartition_state"),
        ({"repartition_state": None}, "repartition_state"),
        ({"repartition_after": -1.0}, "repartition_after"),
        ({"restart": "none"}, "restart"),
        ({"initial_backoff": 0}, "initial_backoff"),
        ({"initial_backoff": 61}, "initial_backoff"),
        ({"backoff_multiplier": 0.9}, "backoff_multiplier"),
        ({"jitter_factor": 1.1}, "jitter_factor"),
        ({"attempts_before_reset": -1}, "attempts_before_reset"),
        ({"fixed_attempts": 1.5}, "fixed_attempts"),
        ({"min_slots": 3, "max_parallelism": 2}, "min_slots"),
        ({"preferred_slots": 3, "max_parallelism": 2}, "preferred_slots"),
    ],
)
def test_an_invalid_value_of_an_option_is_refused(values: dict[str, Any], name: str) -> None:
    with pytest.raises(OptionsError) as caught:
        Options(**values)

    (problem,) = caught.value.problems
    assert problem.startswith(name)
    assert ", expected " in problem or ", above " in problem


def test_options_that_flink_lacks_have_names_in_its_style() -> None:
    key = "reactive.rescale-trigger.max-checkpoint-age"
    assert Options.of({key: "10 s"}).max_commit_age == 10
    assert Options.of({key: "10 s"}).shown()[key] == "10 s"
    assert key not in Options().shown()
    with pytest.raises(OptionsError, match="is no option of this project, .* correct it to " + key):
        Options.of({key + "s": "10 s"})


def test_state_is_repartitioned_only_if_that_is_allowed() -> None:
    key = "reactive.repartition-state"
    assert (Options().repartition_state, Options().repartition_after) == ("never", 600)
    assert Options.of({key: "Allowed"}) == Options.of({}, repartition_state="allowed")
    assert Options.of({key: "allowed", "reactive.repartition-after": "1 h"}).shown() == Options().shown() | {
        key: "allowed",
        "reactive.repartition-after": "1 h",
    }
    with pytest.raises(OptionsError, match=f"{key}: is 'yes', expected never or allowed; correct or remove it"):
        Options.of({key: "yes"})


def test_a_negative_resource_wait_timeout_means_forever() -> None:
    assert Options(resource_wait_timeout=-1) == Options(resource_wait_timeout=math.inf)
    assert Options(resource_wait_timeout=-1).flink_settings().resource_wait == math.inf


@pytest.mark.parametrize(
    ("preferred", "maximum", "upper"), [(None, None, None), (4, None, 4), (None, 8, 8), (4, 8, 4), (8, 8, 8)]
)
def test_a_job_uses_slots_up_to_the_lower_of_its_bounds(
    preferred: int | None, maximum: int | None, upper: int | None
) -> None:
    options = Options(min_slots=2, preferred_slots=preferred, max_parallelism=maximum)

    assert options.most_slots == upper
    assert options.flink_settings().groups == ((Bounds(2, upper or MAX_PARALLELISM),),)


def test_a_rescale_waits_for_a_commit_for_at_most_its_maximum_delay() -> None:
    assert Options().flink_settings().max_delay == 0
    assert Options(max_delay=5.0).flink_settings().max_delay == 5


def test_a_fixed_delay_has_its_own_number_of_attempts() -> None:
    settings = Options(restart=Restart.FIXED, fixed_delay=2.0, fixed_attempts=3).flink_settings()

    assert (settings.restart, settings.delay, settings.attempts) == (Restart.FIXED, 2.0, 3)


def test_options_are_shown_with_flinks_names_in_flinks_format() -> None:
    shown = Options(cooldown=90.0, initial_backoff=0.5).shown()

    assert shown["jobmanager.scheduler"] == "adaptive"
    assert "scheduler-mode" not in shown
    assert shown[SCHEDULER + "submission.resource-wait-timeout"] == "-1 ms"
    assert shown[SCHEDULER + "submission.resource-stabilization-timeout"] == "0 ms"
    assert shown[SCHEDULER + "executing.cooldown-after-rescaling"] == "90 s"
    assert shown[EXPONENTIAL + "initial-backoff"] == "500 ms"
    assert shown[EXPONENTIAL + "max-backoff"] == "1 min"
    assert shown[EXPONENTIAL + "attempts-before-reset-backoff"] == "2147483647"
    assert shown["restart-strategy.type"] == "exponential-delay"
    assert SCHEDULER + "scaling-interval.max" not in shown
    assert "pipeline.max-parallelism" not in shown


TIMES = st.integers(0, 10**9).map(lambda ms: ms / 1000)
LATE = TIMES.filter(lambda span: span >= 60)


@given(
    st.builds(
        Options,
        max_parallelism=st.none() | st.integers(1, MAX_PARALLELISM),
        resource_wait_timeout=TIMES | st.just(math.inf),
        resource_stabilization_timeout=TIMES,
        executing_stabilization=TIMES,
        cooldown=st.integers(0, 30).map(float),
        scaling_interval_max=LATE | st.just(math.inf),
        max_delay=st.none() | TIMES,
        repartition_state=st.sampled_from(REPARTITIONS),
        repartition_after=TIMES,
        heartbeat_timeout=st.integers(2000, 3_600_000).map(lambda ms: ms / 1000),
        restart=st.sampled_from(Restart),
        max_backoff=LATE,
        jitter_factor=st.integers(0, 100).map(lambda share: share / 100),
        attempts_before_reset=st.integers(0, 1000) | st.just(math.inf),
        fixed_attempts=st.integers(0, 1000) | st.just(math.inf),
    )
)
def test_shown_options_are_read_back_equal(options: Options) -> None:
    assert Options.of(options.shown()) == options


@pytest.mark.e2e
def test_flink_knows_every_option() -> None:
    found = find_spec("pyflink")
    assert found is not None
    assert found.submodule_search_locations is not None
    (jar,) = (Path(found.submodule_search_locations[0]) / "lib").glob("flink-dist-2.3*.jar")
    with zipfile.ZipFile(jar) as archive:
        code = b"".join(
            archive.read(f"org/apache/flink/configuration/{name}.class")
            for name in ("JobManagerOptions", "RestartStrategyOptions", "HeartbeatManagerOptions", "PipelineOptions")
        )
    keys = UNUSED.union(*(one.metadata["keys"] for one in fields(Options)))

    assert [key for key in sorted(keys) if not key.startswith(REACTIVE) and key.encode() not in code] == []
