"""The default policy: when it scales up, by how much, and when it scales down. Comments have worked numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import (
    CapacitySpec,
    Cause,
    ClusterSpec,
    ClusterState,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Limits,
    NamedPolicy,
    Observation,
    Phase,
    Policy,
    Reading,
    Reason,
    Recommendation,
    Rescale,
    RescaleTimes,
    View,
)
from autoscaler.core.step import step
from autoscaler.testing import PolicyContract
from autoscaler_policies.adaptive.policy import Adaptive
from autoscaler_policies.adaptive.tuning import TUNING
from tests.policies.conftest import NOW, make

Memory = Mapping[str, float]
T = NOW.timestamp()
INTERVAL = timedelta(seconds=15)


def dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - noise that is the same each time, not a secret


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return Adaptive()


class TestContractWithAProfile(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return Adaptive(profile="lag", scale_down_window=timedelta(0))  # one of the metrics that the contract makes up


# n replicas process 100 n records/s
KNOWN: Memory = {"capacity.level": math.log(100.0), "capacity.exponent": 1.0, "checkpoint.interval": 20.0}


SURE: Memory = {**KNOWN, "capacity.exponent": 0.9, "capacity.level_variance": 1e-6, "capacity.exponent_variance": 0.0}


def shown(arrivals: float, lag: float = 0.0, *, current: int = 4, memory: Memory | None = None, **given: Any) -> View:
    """A view of a job whose capacity is known, with these arrivals as their level."""
    throughput = given.pop("throughput", min(arrivals, 100.0 * current))
    metrics = {"lag": lag, "arrivals": arrivals, "throughput": throughput}
    given.setdefault("maximum", 20)
    view = make({name: value for name, value in metrics.items() if value is not None}, current=current, **given)
    known = {**KNOWN, "arrivals.level": arrivals, "lasting.mean": arrivals, **(memory or {})}
    return replace(view, memory=known)


def asked(view: View, **parameters: Any) -> Recommendation:
    """The recommendation, with a headroom that is easy to calculate with."""
    return Adaptive(**{"headroom": 0.1, **parameters}).evaluate(view)


def test_it_reports_the_capacity_of_a_size_once_it_has_learned_it() -> None:
    assert Adaptive().estimate_capacity(KNOWN, 4, 3.5) == pytest.approx(350.0)
    assert Adaptive().estimate_capacity({}, 4, 4.0) is None


# scale-up


def test_more_replicas_are_requested_when_the_delay_will_soon_approach_the_objective() -> None:
    # Capacity 400/s, arrivals 470/s; new workers come within 45 + 15 s: 70 * 60 pile up, 400 * 10 are replayed, 470 *
    # 15 arrive during the stall: 15250, 32.4 s old. Within 120 s more the oldest gets 70 / 470 * 120 = 17.9 s older,
    # 50.3 s: more than 0.75 * 60. Required: 470 * 1.1 = 517, that is 6 replicas.
    found = asked(shown(470))
    assert (found.replicas, found.reason) == (6, Reason.ABOVE)
    assert found.inputs["rescaled_age"] == pytest.approx(15250 / 470)
    assert found.inputs["recovery"] == pytest.approx(15250 / (600 - 470))
    assert found.inputs["new_capacity"] == pytest.approx(600)
    assert found.detail == (
        "470/s arriving, lag 0; 4 replicas (400/s) are too few, "
        "with 6 (600/s) the backlog is processed 117 s after the rescale"
    )


def test_it_waits_while_the_delay_stays_far_from_the_objective() -> None:
    # 450/s: 13750 pile up, 30.6 s old; 50 / 450 * 120 = 13.3 s more: 43.9 s
    assert asked(shown(450)).replicas == 4
    assert asked(shown(450), slack=0.7).replicas == 5
    assert asked(shown(450), objective=timedelta(seconds=58)).replicas == 5


def test_a_rescale_in_flight_is_corrected_without_waiting() -> None:
    # The stall happens anyway; 405/s are more than 400/s.
    assert asked(shown(405)).replicas == 4
    assert asked(shown(405, rescale=True)).replicas == 5


def test_a_backlog_that_takes_too_long_is_a_shortage_although_arrivals_do_not_grow() -> None:
    # 300/s arrive, the capacity is 400/s: 45000 take 450 s, more than 5 * 60
    found = asked(shown(300, 45000))
    assert found.reason is Reason.ABOVE
    # 25000 take 250 s
    found = asked(shown(300, 25000))
    assert (found.replicas, found.reason) == (4, Reason.STEADY)
    assert found.inputs["recovery"] == pytest.approx(250)
    assert (
        found.detail
        == "300/s arriving, lag 25,000; 4 replicas (400/s) are enough for now, the backlog is processed in 250 s"
    )


def test_a_backlog_of_recent_records_is_not_a_shortage() -> None:
    # 4200 take 420 s, as only 10/s are spare, but the oldest are 4200 / 390 = 11 s old: not 45 s
    assert asked(shown(390, 4200)).replicas == 4


@pytest.mark.parametrize(("waiting", "size"), [(0.0, 5), (1.0, 6), (10.0, 9)])
def test_the_chosen_size_has_the_least_cost_of_workers_and_lateness(waiting: float, size: int) -> None:
    # 450/s arrive and 22000 wait: 35750 pile up, 15500 more than 45 s of arrivals. n replicas have 100 n / 1.05 - 450
    # spare and cost (n - 5) * 450, and `waiting` * 5 for each second that the backlog lasts:
    #   n     5     6     7     8     9    10
    #   s   594.7 127.4  71.5  49.7  38.1  30.9
    # at 1: 3404, 1088, 1257 ...; at 10: 29541, 6832, 4473, 3829, 3704, 3790
    found = asked(shown(450, 22000), lateness_weight=waiting)
    assert found.replicas == size
    prices = {0.0: 0.0, 1.0: 1088.2, 10.0: 3703.5}
    assert found.inputs["cost"] == pytest.approx(prices[waiting], abs=1)


def test_with_much_late_work_a_size_is_requested_although_it_pays_back_late() -> None:
    # a day's backlog: the smallest sufficient size takes forever, and a larger backlog never justifies fewer replicas
    little, much, most = (asked(shown(460, lag, maximum=1000)).replicas for lag in (1e5, 1e6, 1e7))
    assert little is not None
    assert much is not None
    assert most is not None
    assert 9 < little < much < most < 1000


@pytest.mark.parametrize("up", [5.0, 30.0, 60.0])
@pytest.mark.parametrize("lag", [18500, 21000, 21500, 22000, 26000, 30000])
def test_at_equal_backlog_more_arrivals_never_lower_the_size(lag: float, up: float) -> None:
    known = {"capacity.level": math.log(100), "capacity.exponent": 1.0, "checkpoint.interval": 10.0}
    sizes = []
    for arrivals in (340.0, 360.0, 380.0, 390.0, 395.0, 399.0, 401.0):
        metrics = {"lag": lag, "arrivals": arrivals, "throughput": 400.0}
        view = make(metrics, current=4, maximum=10, learned_up=up, stall_up=2.0)
        sizes.append(Adaptive().evaluate(replace(view, memory=known)).replicas or 0)
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("stall", [15.0, 30.0, 60.0])
@pytest.mark.parametrize("size", [10, 20, 40])
@pytest.mark.parametrize("waited", [46.0, 50.0, 55.0, 61.0, 70.0])
def test_at_equal_record_age_more_arrivals_never_lower_the_size(stall: float, size: int, waited: float) -> None:
    # A rescale that takes longer because it adds more replicas must not seem less worthwhile with more arrivals.
    load = [size * (80.0 + 0.25 * step) for step in range(80)]
    views = [shown(each, waited * each, current=size, maximum=100, stall_up=stall) for each in load]
    sizes = [Adaptive().evaluate(view).replicas for view in views]
    assert sizes == sorted(sizes, key=lambda found: found or 0)


@pytest.mark.parametrize(("lag", "more"), [(19000, False), (21000, False), (22000, True), (60000, True)])
def test_a_backlog_that_clears_sooner_without_a_rescale_causes_none(lag: float, *, more: bool) -> None:
    # 40/s are spare: 21000 are 45 s of work after 75 s, 22000 after 100 s. New workers take 60 s to come, the job
    # stalls for 15 s and replays 10 s, and the records that arrive in the meantime have to be processed as well.
    found = asked(shown(360, lag))
    assert (found.replicas or 0) > 4 if more else found.replicas == 4


@pytest.mark.parametrize("waiting", [0.0, 10.0])
def test_if_no_size_suffices_the_maximum_is_requested_and_the_detail_says_so(waiting: float) -> None:
    found = asked(shown(900, 50000, maximum=7), lateness_weight=waiting)
    assert (found.replicas, found.reason) == (7, Reason.ABOVE)
    assert found.detail.endswith("4 replicas (400/s) are too few, and so are 7 (700/s), the maximum")
    assert "recovery" not in found.inputs
    assert "cost" not in found.inputs


def test_at_the_maximum_the_size_stays() -> None:
    found = asked(shown(900, current=7, maximum=7))
    assert (found.replicas, found.reason) == (7, Reason.STEADY)
    # above it, after a change of the configuration, the bounds decide
    found = asked(shown(900, current=8, maximum=7))
    assert (found.replicas, found.reason) == (7, Reason.BELOW)


def test_the_learned_rescale_times_are_used() -> None:
    # 420/s: by default 20 * 60 + 4000 + 6300 = 11500, 27.4 s old, 5.7 s more: it waits
    assert asked(shown(420)).replicas == 4
    # with 200 s until workers are ready: 20 * 200 + 4000 + 6300 = 14300, 34.0 + 5.7 s: still; not with a stall of 30 s
    assert asked(shown(420, learned_up=200.0)).replicas == 4
    assert asked(shown(420, learned_up=200.0)).inputs["ahead"] == 200
    assert asked(shown(420, stall_up=30.0)).replicas == 5
    # nor if 30 s are replayed
    assert asked(shown(420, memory={"checkpoint.interval": 60.0})).replicas == 6
    # without a stall nothing is replayed
    moving = shown(420, memory={"checkpoint.interval": 60.0}, stall_up=0.0, stall_down=0.0)
    assert asked(moving).replicas == 4


def test_the_expected_stall_grows_with_the_number_of_added_replicas() -> None:
    # 470/s need two more, 800/s five: (70 * 60 + 400 * 10 + 470 * 15 * 2^0.2) / 470, and 15 s before any were added
    two, five = (asked(shown(rate, stall_up=15.0)).inputs["rescaled_age"] for rate in (470, 800))
    assert two == pytest.approx((70 * 60 + 400 * 10) / 470 + 15 * 2**0.2)
    assert five == pytest.approx((400 * 60 + 400 * 10) / 800 + 15 * 5**0.2)
    assert asked(shown(800)).inputs["rescaled_age"] == pytest.approx((400 * 60 + 400 * 10) / 800 + 15)


def test_a_trend_scales_up_ahead_of_time_and_the_detail_has_its_forecast() -> None:
    # 390/s, growing by 1.2/s each second: 390 + 1.2 * (60 + 30) = 498 when the new workers are ready
    found = asked(shown(390, memory={"arrivals.trend": 1.2}))
    assert found.reason is Reason.ABOVE
    assert found.inputs["expected"] == pytest.approx(498)
    assert "390/s arriving, 498/s in 60 s, lag 0;" in found.detail
    # up to the rate expected if the trend lasts that long: (390 + 1.2 * (120 + 30)) * 1.2 = 684
    assert found.replicas == 7


def test_a_rise_is_expected_to_last_as_earlier_rises_did() -> None:
    # 390/s are 90/s above the mean of ten minutes, which is 270 s behind a linear rise: 1/3 more each second
    rising = {"lasting.mean": 300.0, "lasting.recent": 300.0, "lasting.weight": 60.0, "lasting.square": 6.0}
    found = asked(shown(390, memory={**rising, "lasting.both": 10.0}))
    assert found.inputs["expected"] == pytest.approx(390 + 90 / 270 * (60 + 30))
    # half of the growth of a linear rise: half of it
    found = asked(shown(390, memory={**rising, "lasting.both": 8.0}))
    assert found.inputs["expected"] == pytest.approx(390 + 45 / 270 * (60 + 30))
    for known in ({**rising, "lasting.both": 6.0}, {**rising, "lasting.both": 10.0, "lasting.weight": 14.0}):
        assert asked(shown(390, memory=known)).inputs["expected"] == 390


def test_an_external_forecast_replaces_the_trend() -> None:
    def forecast_of(*rates: float, rate: float = 380, **more: Any) -> Recommendation:
        view = shown(rate, **more)
        reading = Reading(rates, view.now)
        return asked(replace(view, metrics={**view.metrics, "forecast": reading}), forecast="forecast")

    # 570/s within a minute, when new workers are ready; 700/s after eight, the horizon for which a size is chosen
    found = forecast_of(570.0, 570.0, 700.0)
    assert (found.reason, found.inputs["expected"]) == (Reason.ABOVE, 570.0)
    assert found.replicas == 8  # 700 * 1.1 = 770
    # later arrivals need nothing yet, and no trend counts beside a forecast
    assert forecast_of(380.0, 700.0).replicas == 4
    assert forecast_of(380.0, memory={"arrivals.trend": 1.0}).replicas == 4
    # A forecast lowers nothing, and an invalid one is ignored.
    assert forecast_of(0.0, rate=460).replicas == asked(shown(460)).replicas
    assert forecast_of(-1.0, 5000.0).replicas == 4
    assert asked(shown(380), forecast="forecast") == asked(shown(380))


def test_sizes_that_divide_the_partitions_no_better_are_not_requested() -> None:
    # 12 partitions: 5 replicas process as much as 4; from 6 on only 12 process more
    known = {**KNOWN, "arrivals.level": 480.0}
    assert asked(replace(shown(480, partitions=12), memory=known)).replicas == 6
    assert asked(replace(shown(640, current=6, partitions=12), memory=known | {"arrivals.level": 720.0})).replicas == 12


# nothing is known


def test_configured_values_hold_until_something_is_learned() -> None:
    view = replace(shown(470, per_replica=100.0), memory={"arrivals.level": 470.0, "checkpoint.interval": 20.0})
    assert asked(view).replicas == 6
    learned = {**view.memory, "capacity.level": math.log(50.0), "capacity.exponent": 1.0}
    # 25250 pile up at 200/s; 11 would suffice, but for 4100 late records 15 are worth their cost
    assert asked(replace(view, memory=learned)).replicas == 15
    # nothing is replayed until checkpoints were observed
    assert asked(replace(view, memory={"arrivals.level": 470.0})).replicas == 4


def unknown(lag: float, arrivals: float, throughput: float | None, **given: Any) -> View:
    return replace(shown(arrivals, lag, throughput=throughput, **given), memory={})


@pytest.mark.parametrize(
    ("lag", "arrivals", "throughput", "replicas"),
    [
        (0, 100, 100, None),
        (5900, 110, 100, None),  # 59 s behind
        (6100, 110, 100, 5),  # 61 s behind and falling back
        (6100, 100, 100, 5),  # 61 s behind and not gaining
        (6100, 99, 100, None),  # gaining
        (6100, 110, 0, None),  # nothing is processed: the job may have to start first
        (6100, 110, None, None),
    ],
)
def test_with_unknown_capacity_one_more_replica_is_requested_when_the_job_falls_behind(
    lag: float, arrivals: float, throughput: float | None, replicas: int | None
) -> None:
    found = asked(unknown(lag, arrivals, throughput))
    assert found.replicas == replicas
    assert found.reason is (Reason.LEARNING if replicas is None else Reason.ABOVE)
    assert "capacity not known yet" in found.detail
    if replicas:
        assert "61 s behind and not gaining: one more" in found.detail


def test_with_unknown_capacity_a_rescale_in_flight_is_waited_for() -> None:
    assert asked(unknown(6100, 110, 100, rescale=True)).reason is Reason.LEARNING


@pytest.mark.parametrize(("lag", "arrivals", "replicas"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
def test_from_zero_with_unknown_capacity_one_replica_is_requested_as_soon_as_there_is_work(
    lag: float, arrivals: float, replicas: int
) -> None:
    assert asked(unknown(lag, arrivals, None, current=0, minimum=0)).replicas == replicas


@pytest.mark.parametrize(("lag", "arrivals", "replicas"), [(0, 460, 5), (50000, 0, 11), (10, 0, 1)])
def test_from_zero_as_many_replicas_as_needed_are_requested(lag: float, arrivals: float, replicas: int) -> None:
    found = asked(shown(arrivals, lag, current=0, minimum=0, throughput=0.0))
    assert found.replicas is not None
    if arrivals:
        assert found.replicas >= replicas
    else:
        assert found.replicas > 0
    assert found.reason is Reason.ABOVE


def test_zero_replicas_stay_while_nothing_arrives() -> None:
    assert asked(shown(0, current=0, minimum=0, throughput=0.0)).replicas == 0


# scale-down


def spare(size: int, saved: float = 1e6, watched: float = 1000.0) -> Memory:
    return {"spare.size": float(size), "spare.saved": saved, "spare.since_at": T - watched}


def test_a_scale_down_is_one_step_once_its_savings_cover_the_cost_of_a_rescale() -> None:
    # 300 * 1.05 are 315/s, that is 4 of 8. 60 s of 8 are 480.
    view = shown(300, current=8, memory=spare(8, 480))
    found = asked(view)
    assert (found.replicas, found.reason) == (4, Reason.BELOW)
    assert found.detail == (
        "300/s arriving, lag 0; 4 replicas (400/s) are enough and would have saved 480 replica-seconds; "
        "a rescale costs 480"
    )
    assert asked(shown(300, current=8, memory=spare(8, 479))).replicas == 8
    assert asked(view, rescale_price=timedelta(seconds=61)).replicas == 8


def test_before_a_scale_down_the_detail_says_how_much_it_has_saved() -> None:
    found = asked(shown(300, current=8, memory={**spare(8, 200), "spare.enough": 4.0}))
    assert found.detail.endswith(
        "4 would be enough and would have saved 200 replica-seconds so far; a rescale costs 480"
    )


@pytest.mark.parametrize(
    ("change", "awaited"),
    [
        ({"rescale": True}, "the rescale in progress has settled"),
        ({"memory": {**spare(8, 600, watched=179), "spare.enough": 4.0}}, "this size has been observed for 180 s"),
        ({"lag": 19201}, "the backlog is smaller"),
    ],
)
def test_a_scale_down_with_enough_savings_says_what_it_waits_for(change: dict[str, Any], awaited: str) -> None:
    found = asked(shown(300, current=8, **{"memory": {**spare(8, 600), "spare.enough": 4.0}, **change}))
    assert found.replicas == 8
    assert found.detail.endswith(
        "4 would be enough and would have saved 600 replica-seconds so far; a rescale costs 480; "
        f"waiting until {awaited}"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"memory": spare(8, watched=179)},  # not quiet for long enough
        {"memory": spare(7)},  # observed at another size
        {"memory": {"spare.size": 8.0, "spare.saved": 1e6}},
        {"memory": spare(8), "rescale": True},
        {"memory": spare(8), "lag": 19201},  # still more than 15 s of work waiting
        {"memory": spare(8), "minimum": 8},
        {"memory": {**spare(8), "lasting.mean": 800.0, "lasting.square": 10.0, "lasting.weight": 10.0}},
        {"memory": {**spare(8), "arrivals.trend": 3.0}},  # 300 + 450 are forecast
        # It stalls for 140 s and replays 10 s, 90 s more than the objective: (60 + 14 * 90) * 8 = 10560 to be saved
        {"memory": spare(8, 10559), "stall_down": 140.0},
    ],
)
def test_no_smaller_size_is_requested(change: dict[str, Any]) -> None:
    assert asked(shown(**{"arrivals": 300, "current": 8, **change})).replicas == 8


def test_a_stall_that_makes_records_late_has_a_price_and_the_detail_says_so() -> None:
    # (60 + 14 * (40 + 20 + 4000 / 800 - 60)) * 8 = 1040
    memory = {**spare(8, 1000), "checkpoint.interval": 40.0, "spare.enough": 4.0}
    found = asked(shown(300, 4000, current=8, memory=memory, stall_down=40.0))
    assert found.replicas == 8
    assert found.detail.endswith(
        "4 would be enough and would have saved 1,000 replica-seconds so far; a rescale costs 1,040, "
        "as it makes records 5 s older than the objective"
    )
    saved = asked(shown(300, 4000, current=8, memory={**memory, "spare.saved": 1040.0}, stall_down=40.0))
    assert saved.replicas == 4
    assert saved.detail.endswith("a rescale costs 1,040, as it makes records 5 s older than the objective")
    # without arrivals nothing is late
    assert asked(shown(0, 0, current=8, memory={**memory, "spare.saved": 480.0}, stall_down=40.0)).replicas == 1


@pytest.mark.parametrize("stall", [10.0, 60.0, 120.0])
def test_more_arrivals_never_make_a_rescale_cheaper(stall: float) -> None:
    memory = {**spare(8, 6000), "checkpoint.interval": 120.0}
    sizes = [
        asked(shown(rate, rate, current=8, memory=memory, stall_down=stall)).replicas or 0
        for rate in range(100, 800, 10)
    ]
    assert sizes == sorted(sizes)


def test_a_smaller_size_must_suffice_for_the_arrivals_of_the_window() -> None:
    def seen(ago: float, most: float) -> int | None:
        view = shown(300, current=8, memory=spare(8))
        past = []
        for value, at in ((most, NOW - timedelta(seconds=ago)), (most, NOW - timedelta(seconds=ago - 60))):
            metrics = {"arrivals": Reading(value, at)}
            past.append(Observation(at=at, desired=8, ready=8, metrics=metrics))
        odd = replace(past[0], metrics={"arrivals": Reading(math.nan, past[0].at)})
        return asked(replace(view, past=(*past, odd, *view.past))).replicas

    # A minute of them leaves no larger backlog than n replicas process in 0.1 * 60 s.
    assert seen(120, 400.0) == 4
    assert seen(120, 550.0) == 5
    assert seen(120, 551.0) == 6  # (551 - 500) * 60 > 6 * 500
    assert seen(120, 900.0) == 8
    assert seen(180, 900.0) == 8
    assert seen(181, 900.0) == 4


def test_a_smaller_size_must_suffice_for_the_mean_if_arrivals_only_swing_below_it() -> None:
    swings = {"lasting.mean": 450.0, "lasting.weight": 24.0, "lasting.square": 8.0, "lasting.both": 0.0}
    # nearly 450 * 1.05
    assert asked(shown(300, current=8, memory={**spare(8), **swings})).replicas == 5


def test_more_is_requested_when_the_lasting_part_of_the_load_is_too_high() -> None:
    swings = {"lasting.mean": 350.0, "lasting.weight": 60.0, "lasting.square": 20.0, "lasting.both": 0.0}
    found = asked(shown(460, memory=swings))
    assert (found.replicas, found.reason) == (4, Reason.STEADY)
    assert found.detail == "460/s arriving, 350/s in 60 s, lag 0; 4 replicas (400/s) are enough for now"
    # The lag shows the part that this leaves unprocessed.
    assert asked(shown(460, 28000, memory=swings)).reason is Reason.ABOVE
    # A forecast of another system takes precedence.
    view = shown(460, memory=swings)
    given = {"given": Reading(480.0, NOW)}
    assert asked(replace(view, metrics={**view.metrics, **given}), forecast="given").reason is Reason.ABOVE


@pytest.mark.parametrize("name", ["lag", "arrivals", "throughput"])
def test_without_a_metric_nothing_is_lowered_and_the_detail_says_so(name: str) -> None:
    view = shown(300, current=8, memory=spare(8), missing={name: "connection refused"})
    view = replace(view, metrics={key: reading for key, reading in view.metrics.items() if key != name})
    found = asked(view)
    assert (found.replicas, found.reason) == (None, Reason.MISSING)
    assert found.detail == f"no trusted reading of {name} (connection refused)"


def test_without_the_throughput_a_scale_up_is_still_requested() -> None:
    assert asked(shown(470, throughput=None)).replicas == 6


@pytest.mark.parametrize("value", [(100.0,), (100.0, 100.0, 100.0, -1.0), -1.0])
def test_an_incomplete_or_negative_reading_counts_as_missing(value: float | tuple[float, ...]) -> None:
    view = shown(300, current=4)
    view = replace(view, metrics={**view.metrics, "arrivals": Reading(value, NOW)})
    assert asked(view).reason is Reason.MISSING


def test_the_size_goes_to_zero_when_nothing_arrives_and_zero_is_allowed() -> None:
    view = shown(0, current=2, minimum=0, memory=spare(2))
    assert asked(view).replicas == 0
    assert asked(replace(view, limits=Limits(1, 20))).replicas == 1


# the life of a job: learning and deciding in the order of time


class Life:
    """A job that is observed every 15 s; n replicas process 100 n^0.9 records/s."""

    def __init__(self, policy: Adaptive | None = None, size: int = 4, **given: Any) -> None:
        self.policy = policy or Adaptive()
        self.size = size
        self.given = {"maximum": 20, "engine": True, **given}
        self.memory: Memory = {}
        self.now = NOW
        self.past: tuple[Observation, ...] = ()
        self.status = EngineStatus(job=JobState.RUNNING, running_since=NOW - timedelta(hours=1))

    @property
    def able(self) -> float:
        return 100.0 * float(self.size**0.9)

    def poll(
        self, arrivals: float | None = 300.0, lag: float | None = 0.0, *, missing: str = "", **change: Any
    ) -> Recommendation:
        """Poll once; the metrics named `missing` cannot be read."""
        self.now += change.pop("later", INTERVAL)
        done = change.pop("throughput") if "throughput" in change else min(arrivals or 0.0, self.able)
        busy = change.pop("utilization", min(done / max(self.able, 1.0), 1.0) if done is not None else None)
        values = {"arrivals": arrivals, "lag": lag, "throughput": done, "utilization": busy}
        values["profile"] = change.pop("profile", None)
        metrics = {
            name: Reading(value, self.now)
            for name, value in values.items()
            if value is not None and name not in missing.split()
        }
        observation = Observation(
            at=self.now,
            desired=self.size,
            ready=self.size,
            metrics=metrics,
            missing=dict.fromkeys(missing.split(), "no answer"),
        )
        self.past = (*self.past[-70:], observation)
        view = make(current=self.size, past=self.past, **self.given)
        view = replace(view, **{"now": self.now, "metrics": metrics, "engine": self.status, **change})
        self.memory = self.policy.learn(replace(view, memory=self.memory))
        return self.policy.evaluate(replace(view, memory=self.memory))

    def until(self, size: int, most: int = 400, **given: Any) -> int:
        """Poll until this size is requested, every earlier poll keeping the present one; return the number of polls."""
        for number in range(1, most):
            found = self.poll(**given).replicas
            if found == size:
                return number
            assert found == self.size
        raise AssertionError(f"{size} was never asked for")


@pytest.mark.parametrize("since", [{}, {"spare.since_at": T + 1e9}])
def test_savings_without_a_known_start_are_counted_anew(since: Memory) -> None:
    life = Life(size=12)
    life.memory = {**SURE, "spare.size": 12.0, "spare.seen_at": T, "spare.saved": 1e6, **since}
    assert life.until(4) == 13


def test_a_scale_down_that_saves_much_comes_sooner_than_one_that_saves_little() -> None:
    much, little = Life(size=12), Life(size=5)
    much.memory = SURE
    # 4 of 12 suffice: 8 * 15 each time make 60 * 12 = 720 after 6 times; but 12 times are 3 minutes
    assert much.until(4) == 13
    # 4 of 5: 15 each time make 60 * 5 = 300 after 20 times
    assert little.until(4) == 21


@pytest.mark.parametrize(("phase", "polls"), [(Phase.REQUESTED, 6), (Phase.ABSORBED, 6), (Phase.RUNNING, 1)])
def test_savings_count_from_when_the_job_runs_at_its_new_size(phase: Phase, polls: int) -> None:
    life = Life(size=12)
    life.memory = SURE
    rescale = Rescale(before=4, to=12, at=NOW, cause=Cause.REQUEST, phase=phase, since=NOW)
    for _ in range(14):
        assert life.poll(rescale=rescale).replicas == 12  # no scale-down before it has caught up
    assert life.until(4) == polls  # 6 times 8 * 15 make 60 * 12


def test_a_scale_down_keeps_a_margin_for_uncertain_capacity() -> None:
    # The capacity of one size says little about a third of it: 4 process 348/s, but with an uncertainty of 11 %.
    assert Life(size=12).until(5, arrivals=315.0) == 13
    life = Life(size=12)
    life.memory = SURE
    assert life.until(4, arrivals=315.0) == 13


def test_a_scale_down_waits_until_the_smaller_size_can_clear_the_backlog() -> None:
    # 24 s of the smaller size's capacity: at 400/s 9,600 records, at 800/s 19,200
    assert asked(shown(300, 9600, current=8, memory=spare(8))).replicas == 4
    waits = asked(shown(300, 9601, current=8, memory={**spare(8), "spare.enough": 4.0}))
    assert (waits.replicas, waits.detail.endswith("; waiting until the backlog is smaller")) == (8, True)


def test_the_utilization_at_which_the_job_is_saturated_is_reported() -> None:
    known = asked(shown(470, memory={"saturation.utilization": 0.35}))
    assert known.detail.startswith("470/s arriving, lag 0, at a utilization of 0.35 it can do no more; 4 replicas")
    assert "utilization" not in asked(shown(470)).detail


@pytest.mark.parametrize(("lag", "size"), [(0, 0), (1, 2), (4000, 2)])
def test_the_size_does_not_go_to_zero_while_records_wait(lag: float, size: int) -> None:
    assert asked(shown(0, lag, current=2, minimum=0, memory=spare(2))).replicas == size


def test_a_size_that_partitions_limit_is_as_uncertain_as_the_size_of_its_work() -> None:
    # Six replicas with ten partitions do the work of five, and their capacity is no less certain than that of five.
    known = {"capacity.level_variance": 0.0025, "capacity.exponent_variance": 0.01, **spare(12)}
    enough = 500 / (1 + math.sqrt(0.0025 + math.log(5) ** 2 * 0.01)) / 1.05
    for arrivals, size in ((enough * 0.999, 5), (enough * 1.001, 10)):
        assert asked(shown(arrivals, current=12, partitions=10, memory=known)).replicas == size


def test_an_intermittent_chance_to_scale_down_saves_nothing() -> None:
    life = Life(size=5)
    for number in range(400):
        assert life.poll(arrivals=300.0 if number % 40 < 20 else 380.0).replicas == 5


def test_after_a_gap_in_the_observations_savings_start_anew() -> None:
    life = Life(size=5)
    for _ in range(16):
        life.poll()
    life.poll(later=timedelta(seconds=TUNING.stale_s + 15))
    assert life.until(4) > 16
    life = Life(size=5)
    for _ in range(16):
        life.poll()
    for _ in range(41):  # more than 10 minutes without readings save nothing either
        life.poll(lag=None)
    assert life.until(4) > 16


@pytest.mark.parametrize("name", ["lag", "arrivals"])
def test_one_missing_reading_does_not_restart_the_savings(name: str) -> None:
    life = Life(size=5)
    for _ in range(16):
        life.poll()
    missing: dict[str, Any] = {name: None, "throughput": 300.0, "utilization": 0.7}
    assert life.poll(**missing).replicas is None
    assert life.until(4) == 21 - 17  # as if it had been read


def test_a_size_is_learned_from_every_form_of_utilization() -> None:
    for utilization, learned in ((0.5, 600), ((0.2, 0.75, 0.5, 0.3), 400), (None, 0)):
        life = Life(size=4)
        found = life.poll(300.0, utilization=utilization)
        assert found.inputs.get("capacity", 0) == pytest.approx(learned)


def test_a_job_that_falls_behind_is_saturated() -> None:
    # arrivals exceed the throughput, and more than 10 s of them wait
    for busy, learned in ((None, 300), (0.7, 300), (0.5, 600)):
        life = Life(size=4)
        life.poll(400.0, lag=4000.0, throughput=300.0, utilization=busy)
        known = math.exp(life.memory["capacity.level"]) * 4 ** life.memory["capacity.exponent"]
        assert known == pytest.approx(learned)


@pytest.mark.parametrize(
    "change",
    [
        {"ready": 3},
        {"current": 0, "ready": 0},
        {"engine": EngineStatus(job=JobState.RESTARTING)},
        {"engine": EngineStatus(job=JobState.RUNNING, running_since=NOW)},
        {"disturbance_ended_at": NOW - timedelta(seconds=90)},
        {"rescale": Rescale(before=3, to=4, at=NOW, cause=Cause.REQUEST, phase=Phase.READY, since=NOW)},
        {"throughput": None},
    ],
)
def test_no_capacity_is_learned_from_a_transient(change: dict[str, Any]) -> None:
    life = Life(size=4)
    life.poll(**change)
    assert "capacity.level" not in life.memory


@pytest.mark.parametrize(
    "change",
    [
        {"engine": None},
        {"engine": EngineStatus(job=JobState.RUNNING)},
        {"engine": EngineStatus(job=JobState.RUNNING, running_since=NOW + timedelta(hours=1))},  # their clock is ahead
        {"disturbance_ended_at": NOW - timedelta(seconds=120)},
        {"rescale": Rescale(before=3, to=4, at=NOW, cause=Cause.REQUEST, phase=Phase.RUNNING, since=NOW)},
    ],
)
def test_capacity_is_learned_once_a_transient_is_over(change: dict[str, Any]) -> None:
    life = Life(size=4)
    life.poll(**change)
    assert "capacity.level" in life.memory


def test_the_learned_stalls_are_used_and_a_job_without_stalls_replays_nothing() -> None:
    learned = Learned(
        times={
            Direction.UP: (RescaleTimes(30.0, 30.0, 42.0, 42.0),),
            Direction.DOWN: (RescaleTimes(0.0, 0.0, 9.0, 9.0),),
        }
    )
    assert asked(replace(shown(450), learned=learned)).inputs["ahead"] == 42
    # 460/s at 400/s can wait longer: 3600 pile up until the workers are ready, and nothing else
    found = asked(shown(460, stall_up=0.0, stall_down=0.0))
    assert found.replicas == 4
    assert found.inputs["rescaled_age"] == pytest.approx(3600 / 460)


def test_the_checkpoint_interval_is_the_shortest_observed_and_may_grow_slowly() -> None:
    life = Life(size=4)
    for seconds in (0, 60, 60, 90):
        life.status = replace(life.status, last_checkpoint=NOW + timedelta(seconds=seconds))
        life.poll()
    # first 60 s apart; the same again adds nothing; then 30 s
    assert life.memory["checkpoint.interval"] == 30
    life.status = replace(life.status, last_checkpoint=NOW + timedelta(seconds=190))
    life.poll()
    assert life.memory["checkpoint.interval"] == pytest.approx(33)


def test_a_jump_of_arrivals_without_throughput_or_lag_is_doubted() -> None:
    life = Life(size=4)
    for _ in range(40):
        life.poll(300.0)
    assert life.poll(900.0, throughput=300.0).inputs["arrivals"] == pytest.approx(300, rel=0.05)
    assert life.poll(900.0, throughput=300.0, lag=9000.0).inputs["arrivals"] == 900


def test_a_larger_doubted_jump_leads_to_no_smaller_size() -> None:
    life = Life(size=8)
    found = life.poll(300.0)
    for _ in range(80):
        before = life.memory, life.now, life.past
        found = life.poll(300.0)
        if found.reason is Reason.BELOW:
            break
    assert found.reason is Reason.BELOW
    sizes = []
    for reading in range(250, 900, 5):
        life.memory, life.now, life.past = before
        sizes.append(life.poll(float(reading), throughput=300.0).replicas or 0)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 1


def test_minutes_without_a_reading_are_ignored() -> None:
    life = Life(size=8)
    for number in range(60):
        life.poll(200 + 3.0 * number)
    before = life.memory["lasting.recent"]
    gone = [replace(seen, metrics={}) if number % 8 == 2 else seen for number, seen in enumerate(life.past)]
    life.past = tuple(gone)
    life.poll(380.0)
    assert life.memory["lasting.recent"] == pytest.approx(before, rel=0.05)


def test_without_a_past_the_present_reading_is_learned() -> None:
    view = make({"arrivals": 300.0, "lag": 0.0, "throughput": 300.0}, past=())
    assert Adaptive().learn(view)["lasting.mean"] == 300


# parameters


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"objective": timedelta(0)}, "objective: is 0s, expected above 0s"),
        ({"slack": 0.0}, "slack: is 0.0, expected above 0"),
        ({"slack": 1.1}, "slack: is 1.1, expected above 0"),
        ({"slack": math.nan}, "slack: is nan, expected above 0"),
        ({"headroom": -0.1}, "headroom: is -0.1, expected from 0"),
        ({"headroom": 1.0}, "headroom: is 1.0, expected from 0"),
        ({"down_headroom": math.nan}, "down_headroom: is nan, expected from 0"),
        ({"lateness_weight": -1.0}, "lateness_weight: is -1.0, expected a finite number of 0 or more"),
        ({"lateness_weight": math.inf}, "lateness_weight: is inf, expected a finite number of 0 or more"),
        ({"scale_down_window": timedelta(seconds=-1)}, "scale_down_window: is -1s, expected 0s or more"),
        ({"rescale_price": timedelta(seconds=-1)}, "rescale_price: is -1s, expected 0s or more"),
        ({"restart": timedelta(seconds=-1)}, "restart: is -1s, expected 0s or more"),
        ({"start_up": timedelta(seconds=-1)}, "start_up: is -1s, expected 0s or more"),
        ({"lag": ""}, "lag: is empty"),
        ({"arrivals": ""}, "arrivals: is empty"),
        ({"throughput": ""}, "throughput: is empty"),
        ({"utilization": ""}, "utilization: is empty"),
        ({"profile": ""}, "profile: is empty"),
        ({"forecast": ""}, "forecast: is empty"),
    ],
)
def test_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Adaptive(**parameters)


def test_the_lookback_covers_the_past_that_the_policy_reads() -> None:
    assert Adaptive().lookback == timedelta(minutes=17)
    assert Adaptive(scale_down_window=timedelta(minutes=30)).lookback == timedelta(minutes=32)
    assert Adaptive(lag="waiting").metrics == ("waiting", "arrivals", "throughput")


# properties


def known(chance: Random) -> tuple[Memory, float, float]:
    """Memory that may have been learned, the capacity of one replica, and the exponent."""
    one, exponent = 10 ** chance.uniform(0, 5), chance.uniform(0.6, 1.0)
    memory = {"capacity.level": math.log(one), "capacity.exponent": exponent}
    ranges = {
        "arrivals.noise": (0.01, 0.3),
        "checkpoint.interval": (1.0, 100.0),
    }
    memory |= {name: chance.uniform(*ends) for name, ends in ranges.items() if chance.random() < 0.6}
    return memory, one, exponent


@settings(deadline=None, max_examples=400)  # a busy machine is not a failure
@given(st.integers(0, 10**9), st.floats(1e-3, 10.0))
def test_more_arrivals_never_mean_fewer_replicas(seed: int, more: float) -> None:
    """All else equal: the same capacity and times, the same age of records, and all arrivals times a factor.

    The number of waiting records differs: with more arrivals they have arrived within a shorter time.
    """
    chance = dice(seed)
    memory, one, exponent = known(chance)
    current = chance.randint(1, 40)
    able = one * current**exponent
    arrivals = able * chance.uniform(0.3, 1.6)
    waited = chance.choice((0.0, chance.uniform(0, 120), 10 ** chance.uniform(0, 4)))
    slopes = {name: chance.uniform(-0.01, 0.02) for name in ("arrivals.trend", "arrivals.slope")}
    extra = {**spare(current, 10 ** chance.uniform(0, 5), chance.uniform(0, 1000))}
    peak = chance.uniform(0, 1.2)
    parameters = {
        "lateness_weight": chance.choice((1.0, 10.0)),
        "objective": timedelta(seconds=chance.choice((30, 60, 600))),
    }
    given: dict[str, Any] = {
        "current": current,
        "maximum": 60,
        "partitions": chance.choice((None, None, 12, 60, 90)),
        "learned_up": chance.choice((None, chance.uniform(5, 200))),
        "stall_up": chance.choice((None, chance.uniform(0, 60))),
        "stall_down": chance.choice((None, chance.uniform(0, 60))),
    }

    def size(factor: float) -> int:
        now = arrivals * factor
        trends = {name: max(slope, 0.0) * now for name, slope in slopes.items()}
        view = shown(now, waited * now, memory={**extra, **trends, **memory}, throughput=min(now, able), **given)
        at = NOW - INTERVAL
        view = replace(
            view,
            past=(
                Observation(at=at, desired=current, ready=current, metrics={"arrivals": Reading(peak * now, at)}),
                *view.past,
            ),
        )
        found = asked(view, **parameters).replicas
        assert found is not None
        return found

    assert size(1.0) <= size(1.0 + more)


@pytest.mark.parametrize("seed", range(6))
def test_of_two_readings_the_greater_never_requests_a_smaller_size(seed: int) -> None:
    """After the same past without a trend, with what is learned from either reading.

    A trend counts while readings lie on its line: a reading far above the line makes it doubtful, which may cost more.
    """
    chance = dice(seed)
    life = Life(size=4, maximum=40)
    compared = 0
    for number in range(160):
        load = 300 * math.exp(chance.gauss(0, 0.02))
        if number > 20:
            sizes = []
            for factor in (0.6, 0.9, 1.0, 1.05, 1.2, 1.5, 3.0):
                other = Life(size=life.size, maximum=40)
                other.memory, other.now, other.past = life.memory, life.now, life.past
                reading = load * factor
                # arrivals that are not processed wait, else the jump would be doubted; they have waited 3 s
                sizes.append(other.poll(reading, lag=3 * reading).replicas)
            assert None not in sizes
            assert sizes == sorted(sizes)  # type: ignore[type-var]
            compared += len(set(sizes)) > 1
        found = life.poll(load, lag=3 * load)
        life.size = found.replicas or life.size
    assert compared > 50


BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)


def sizes(seed: int, factor: float, polls: int = 120) -> list[int]:
    """The sizes that a whole decision machine requests, poll by poll, in a random life; all rates times a factor."""
    chance = dice(seed)
    usual = tuple(chance.uniform(20, 300) * factor for _ in range(168)) if chance.random() < 0.3 else ()
    policy = Adaptive(profile="profile" if usual else None)
    limits = Limits(chance.choice((0, 1, 2)), chance.choice((10, 40)))
    spec = ClusterSpec(
        name="c",
        limits=limits,
        policies=(NamedPolicy("a", policy),),
        capacity=CapacitySpec(per_replica=chance.choice((None, 100 * factor))),
        metrics=policy.metrics,
        engine=True,
        partitions=chance.choice((None, 12, 60)),
        lookback=policy.lookback,
    )
    state = ClusterState()
    desired = ready = chance.randint(1, limits.maximum)
    one, load, lag = chance.uniform(50, 150), chance.uniform(50, 1000), 0.0
    since, coming = BEGIN - timedelta(hours=1), -1
    found = []
    for number in range(polls):
        at = BEGIN + number * INTERVAL
        if chance.random() < 0.03:
            load = chance.uniform(20, 3000)
        load *= math.exp(chance.gauss(0, 0.03))
        if number == coming:
            ready, since = desired, at - timedelta(seconds=chance.uniform(0, 14))
        able = one * ready**0.9
        done = 0.0 if number == coming - 1 else min(able, load + lag / 15)
        lag += (load - done) * 15
        values = {
            "lag": lag * factor,
            "arrivals": load * factor * math.exp(chance.gauss(0, 0.02)),
            "throughput": done * factor,
            "utilization": min(done / able, 1.0) * chance.uniform(0.97, 1) if able else 0.0,
        }
        metrics = {name: Reading(value, at) for name, value in values.items() if chance.random() > 0.01}
        if usual:
            metrics["profile"] = Reading(usual[number // 4 :][:31], at)  # a minute is four polls
        checkpoint = at - timedelta(seconds=number % 4 * 15 + chance.random())
        status = EngineStatus(
            job=JobState.RUNNING,
            slots=ready,
            parallelism=ready,
            max_parallelism=None,
            partitions=None,
            running_since=since,
            last_checkpoint=checkpoint,
        )
        state, decision = step(
            spec, state, Observation(at=at, desired=desired, ready=ready, metrics=metrics, missing={}, engine=status)
        )
        assert limits.minimum <= decision.desired <= limits.maximum
        assert all(asked.reason is not Reason.FAILED for asked in decision.recommendations)
        if decision.rescale:
            desired, coming = decision.desired, number + chance.randint(1, 6)
        found.append(decision.desired)
    return found


@settings(deadline=None, max_examples=16)
@given(st.integers(0, 10**6), st.integers(-20, 30), st.floats(1e-6, 1e6))
def test_rates_and_lags_times_a_factor_give_the_same_sizes(seed: int, power: int, factor: float) -> None:
    expected = sizes(seed, 1.0)
    assert sizes(seed, 2.0**power) == expected
    assert sizes(seed, factor) == expected


def test_the_compared_lives_contain_changes() -> None:
    assert sum(len(set(sizes(seed, 1.0))) > 1 for seed in range(10)) >= 8


readings = st.floats(0, 1.7976931348623157e308) | st.floats(allow_nan=False, allow_infinity=False)
numbers = st.sampled_from((0.0, 1.0, 300.0, 1e300)) | readings


@settings(deadline=None, max_examples=150)
@given(
    polls=st.lists(
        st.tuples(numbers, numbers, numbers, numbers | st.floats(0, 1), st.integers(0, 12), st.floats(0, 1e5)),
        min_size=1,
        max_size=10,
    ),
    keep=st.booleans(),
)
def test_whatever_is_read_sizes_are_allowed_and_all_numbers_finite(
    *, polls: list[tuple[float, float, float, float, int, float]], keep: bool
) -> None:
    life = Life(Adaptive(profile="profile"), minimum=1, maximum=10)
    for arrivals, lag, throughput, busy, size, later in polls:
        life.size = size
        found = life.poll(
            arrivals,
            lag,
            throughput=throughput,
            utilization=(busy,) * max(size, 1),
            profile=(1.0, 1e300, 0.0) if size % 2 else (1.7e308, 1.0),
            later=timedelta(seconds=later),
        )
        assert all(map(math.isfinite, life.memory.values()))
        assert all(map(math.isfinite, found.inputs.values()))
        assert found.replicas is None or 1 <= found.replicas <= 10
        if not keep:
            life.memory = dict(list(life.memory.items())[::2])


def test_the_learned_duration_of_a_phase_is_the_median() -> None:
    view = shown(460)
    durations: dict[Direction, Mapping[Phase, tuple[float, ...]]] = {
        Direction.UP: {Phase.READY: (10.0, 500.0, 20.0), Phase.RUNNING: (7.0,), Phase.CAUGHT_UP: (999.0,)}
    }
    assert asked(replace(view, learned=Learned({}, durations))).inputs["ahead"] == 27
