import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    Limits,
    NamedPolicy,
    Observation,
    Policy,
    Reading,
    Reason,
    Recommendation,
    View,
)
from autoscaler.core.step import step
from autoscaler.plugins import Kind, load
from autoscaler.ports import Record
from autoscaler.simulation.faults import (
    ALL,
    DESCRIPTIONS,
    NONE,
    FaultError,
    FaultKind,
    Faults,
    Injector,
    ReadingFault,
    describe,
    parse,
    restart_daemon,
)
from autoscaler.simulation.loads import Load, constant, load_by_name, staircase
from autoscaler.simulation.loop import Run, run
from autoscaler.simulation.plant import PLANTS, START, STEP, Plant

METRICS = ("arrivals", "throughput", "lag", "utilization", "saturation", "cpu")
K8S = PLANTS["k8s"]
ALL_SIZES = Limits(1, 24)
ADAPTIVE = load(Kind.POLICY, "adaptive")(objective=timedelta(seconds=60))
RAMPS = replace(load_by_name("ramps8h", 3), rates=load_by_name("ramps8h", 3).rates[: 4 * 720])


def _spec(policy: Policy = ADAPTIVE, limits: Limits = ALL_SIZES) -> ClusterSpec:
    looking = getattr(policy, "lookback", timedelta(0))
    return ClusterSpec(
        name="x",
        limits=limits,
        policies=(NamedPolicy("one", policy),),
        metrics=METRICS,
        engine=True,
        lookback=max(timedelta(minutes=10), looking),
    )


@dataclass(frozen=True, slots=True)
class Follows:
    """Requests the size for the present load at once."""

    one: float

    def evaluate(self, view: View) -> Recommendation:
        arrivals = view.number("arrivals")
        if arrivals is None:
            return Recommendation(None, Reason.MISSING)
        return Recommendation(max(1, math.ceil((arrivals / self.one) ** (1 / 0.9))), Reason.STEADY)


def _ran(text: str, policy: Policy = ADAPTIVE, offered: Load = RAMPS, seed: int = 1) -> tuple[Run, list[Record]]:
    records: list[Record] = []
    faults = parse(text) if text else NONE
    return run(_spec(policy), K8S, offered, seed, record=records.append, faults=faults), records


@cache
def _violation(text: str) -> float:
    return _ran(text)[0].score().violation


# By name


def test_faults_are_parsed_from_one_string() -> None:
    assert parse("missing, nan@lag:2m,crash,delayed:90s,refused:12.5%") == Faults(
        readings=(ReadingFault(FaultKind.MISSING, 60.0), ReadingFault(FaultKind.NAN, 120.0, "lag")),
        crash=2700.0,
        delayed=90.0,
        refused=0.125,
    )


def test_all_faults_at_once_have_their_default_amounts() -> None:
    everything = parse(ALL)
    assert [fault.kind for fault in everything.readings] == list(FaultKind)
    assert everything == parse(",".join(DESCRIPTIONS))
    assert all(getattr(everything, name) > 0 for name in DESCRIPTIONS if name not in set(FaultKind))


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_every_named_fault_is_described_with_its_amount(name: str) -> None:
    (output,) = describe(parse(name))
    assert DESCRIPTIONS[name].default in output or DESCRIPTIONS[name].default == "60s"
    assert "{" not in output
    assert "@" not in output


def test_the_description_names_the_affected_metric() -> None:
    assert describe(parse("missing@target,missing@engine:2m,nan@lag,stale")) == [
        "the target cannot be read for 1m in every hour",
        "the engine cannot be read for 2m in every hour",
        "lag: metrics are not a number for 1m in every hour",
        "metrics stay as they were, time stamps included, for 5m in every hour",
    ]


def test_without_faults_there_is_nothing_to_describe() -> None:
    assert describe(NONE) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mising",
            "'mising': 'mising' is not a fault; did you mean 'missing'?; expected one of missing, stale, frozen",
        ),
        ("", "'': '' is not a fault; expected one of "),
        ("crash:45", "'crash:45': 45 has no unit"),
        ("crash:0s", "'crash:0s': the amount is 0, expected one like 45m"),
        ("crash:", "'crash:': expected a duration"),
        ("refused:30s", "'refused:30s': expected a percentage like 30%, not '30s'"),
        ("refused:%", "'refused:%': expected a percentage like 30%, not '%'"),
        ("refused:130%", "refused: is 1.3, expected a share from 0 to 1"),
        ("refused:50%,half:60%", "refused, unanswered and half: are 1.1 of all scale calls together"),
        ("crash@lag", "'crash@lag': expected the name of a metric after @, for one of missing, stale, frozen, nan"),
        ("nan@", "'nan@': expected the name of a metric after @"),
        ("nan@engine", "nan: of the engine, which can only be missing"),
        ("frozen:61m", "frozen: lasts 3660 s of every hour, expected above 0s and at most 1h"),
        ("crash,crash:10m", "'crash:10m': crash is given twice"),
    ],
)
def test_an_unknown_fault_is_reported_with_the_known_ones(text: str, message: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_all_errors_of_a_fault_string_are_reported_at_once() -> None:
    with pytest.raises(FaultError) as caught:
        parse("crush:1h,missing,slow:5m")
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["'crush", "'slow"]


@pytest.mark.parametrize("name", ["late", "delayed", "crash", "restart"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_durations_must_be_finite_and_not_negative(name: str, value: float) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(FaultError, match=f"{name}: is .* s, expected 0 or more"):
        Faults(**given)


def test_a_fault_of_an_unknown_metric_is_refused() -> None:
    with pytest.raises(
        FaultError, match=r"nan@lags: is not a metric of the cluster; did you mean 'lag'\?; it has arriv"
    ):
        Injector(parse("nan@lags"), 1, _spec())


# Readings


def _seen(text: str, hours: float = 3.0, seed: int = 1) -> list[Observation]:
    """The observations every 15 s of metrics that grow by 1 with every tick."""
    injector = Injector(parse(text), seed, _spec())
    found = []
    for tick in range(round(hours * 240)):
        at = START + timedelta(seconds=15 * tick)
        metrics = {name: Reading(float(tick), at) for name in ("lag", "arrivals")} | {"cpu": Reading((1.0, tick), at)}
        found.append(injector.seen(Observation(at=at, desired=3, ready=3, metrics=metrics), 15.0 * tick))
    return found


def _wrong(text: str, hours: float = 3.0, seed: int = 1) -> list[int]:
    """The ticks at which an observation differs from the truth."""
    pairs = zip(_seen(text, hours, seed), _seen("restart", hours), strict=True)
    return [tick for tick, (seen, usual) in enumerate(pairs) if seen != usual]


@pytest.mark.parametrize(("text", "ticks"), [("missing:60s", 4), ("nan:5m", 20), ("frozen:5m", 20), ("stale:5m", 20)])
def test_readings_are_wrong_once_in_every_hour_for_the_configured_time(text: str, ticks: int) -> None:
    wrong = _wrong(text, hours=8)
    # A frozen reading is still right in its first moment.
    first = 1 if text.startswith(("frozen", "stale")) else 0
    assert [sum(tick // 240 == hour for tick in wrong) for hour in range(8)] == [ticks - first] * 8
    begins = [tick for tick in wrong if tick - 1 not in wrong]
    assert len({begin % 240 for begin in begins}) > 4


def test_the_times_of_faults_depend_on_the_seed() -> None:
    assert _wrong("missing") == _wrong("missing")
    assert _wrong("missing") != _wrong("missing", seed=2)
    assert _wrong("missing,nan")[:4] != _wrong("nan")[:4]


def test_a_fault_that_lasts_the_whole_hour_is_permanent() -> None:
    assert _wrong("missing:1h") == list(range(720))


def test_each_fault_changes_readings_in_its_own_way() -> None:
    def during(text: str) -> tuple[int, Observation]:
        tick = _wrong(text)[1]
        return tick, _seen(text)[tick]

    tick, seen = during("missing")
    assert dict(seen.metrics) == {}
    assert set(seen.missing) == {"lag", "arrivals", "cpu"}
    tick, seen = during("nan@lag")
    assert not seen.metrics["lag"].finite()
    assert seen.metrics["arrivals"].value == tick
    tick, seen = during("doubled")
    assert [seen.metrics[name].value for name in ("lag", "cpu")] == [2 * tick, (2, 2 * tick)]
    tick, seen = during("frozen@lag")
    assert seen.metrics["lag"] == Reading(tick - 2, seen.at)
    tick, seen = during("stale@lag")
    assert seen.metrics["lag"] == Reading(tick - 2, seen.at - timedelta(seconds=30))


def test_the_target_and_the_engine_can_be_missing() -> None:
    records = _ran("missing@target:5m,missing@engine:5m")[1]
    blind = [record for record in records if "target" in record.observation.missing]
    deaf = [record for record in records if "engine" in record.observation.missing]
    assert len(blind) == len(deaf) == 4 * 20
    assert {(seen.observation.desired, seen.observation.ready) for seen in blind} == {(None, None)}
    assert {seen.observation.engine for seen in deaf} == {None}
    assert not any(record.decision.rescale for record in blind)
    assert not any(record.decision.desired < record.decision.current for record in deaf)


def test_a_missing_metric_gets_no_other_fault() -> None:
    both = _seen("missing@lag:1h,doubled:1h,nan@lag:1h")
    assert all("lag" not in seen.metrics and set(seen.missing) == {"lag"} for seen in both)


def test_a_metric_that_appears_during_a_freeze_is_missing() -> None:
    injector = Injector(parse("frozen:1h"), 1, _spec())
    injector.seen(Observation(at=START, desired=1, ready=1), 0.0)
    late = START + timedelta(seconds=15)
    seen = injector.seen(Observation(at=late, desired=1, ready=1, metrics={"lag": Reading(1.0, late)}), 15.0)
    assert dict(seen.metrics) == {}
    assert set(seen.missing) == {"lag"}


def test_metrics_are_missing_independently() -> None:
    seen = _seen("gaps:20%", hours=10)
    gone = {name: [name not in each.metrics for each in seen] for name in ("lag", "arrivals", "cpu")}
    assert all(sum(each) / len(seen) == pytest.approx(0.2, abs=0.02) for each in gone.values())
    assert all(set(each.missing) | set(each.metrics) == set(gone) for each in seen)
    assert not any(set(each.missing) & set(each.metrics) for each in seen)
    assert gone["lag"] != gone["arrivals"]
    assert all(each.desired == each.ready == 3 for each in seen)


def test_late_readings_have_earlier_values_and_time_stamps() -> None:
    seen = _seen("late:40s")
    assert [dict(each.metrics) for each in seen[:3]] == [{}] * 3  # 40 s are three polls of 15 s
    assert set(seen[0].missing) == {"lag", "arrivals", "cpu"}
    assert [each.metrics["lag"].value for each in seen[3:6]] == [0.0, 1.0, 2.0]
    assert seen[5].metrics["cpu"] == Reading((1.0, 2.0), START + timedelta(seconds=30))
    assert not seen[5].missing


def test_a_doubled_reading_of_workers_has_a_doubled_mean_and_shares_stay_within_1() -> None:
    at = START + timedelta(minutes=1)
    metrics = {
        "lag": Reading((10.0, 30.0), at, mean=20.0),
        "cpu": Reading((0.25, 1.0), at, mean=0.5),
    }
    seen = Observation(at=at, desired=2, ready=2, metrics=metrics)
    for text, most in (("doubled:60m", 2.0), ("noise:10%", 1.5)):
        found = Injector(parse(text), 1, _spec()).seen(seen, 60.0).metrics
        for name, reading in found.items():
            assert isinstance(reading.value, tuple)
            assert reading.mean is not None
            known = metrics[name]
            assert reading.mean == pytest.approx((known.mean or 0.0) * reading.value[0] / known.value[0])  # type: ignore[index]
            assert reading.mean <= (known.mean or 0.0) * most
        if text.startswith("doubled"):
            assert found["lag"].mean == 40.0


def test_noise_has_the_configured_deviation_and_shares_stay_within_1() -> None:
    seen = _seen("noise:10%", hours=10)
    off = [each.metrics["lag"].value / tick - 1 for tick, each in enumerate(seen) if tick]  # type: ignore[operator]
    assert math.fsum(off) / len(off) == pytest.approx(0.0, abs=0.01)
    assert math.sqrt(math.fsum(each * each for each in off) / len(off)) == pytest.approx(0.1, abs=0.01)
    busy = [each.metrics["cpu"].value for each in seen]
    assert all(isinstance(each, tuple) and max(each) <= 1.0 for each in busy)
    assert any(isinstance(each, tuple) and 0.7 < each[0] < 1.0 for each in busy)
    assert all(each.metrics["lag"].at == START + timedelta(seconds=15 * tick) for tick, each in enumerate(seen))


def test_gaps_do_not_change_the_noise() -> None:
    noisy, both = _seen("noise:10%"), _seen("noise:10%,gaps:20%")
    shown = [(a.metrics["lag"], b.metrics["lag"]) for a, b in zip(noisy, both, strict=True) if "lag" in b.metrics]
    assert 0 < len(shown) < len(noisy)
    assert all(one == other for one, other in shown)


@pytest.mark.parametrize("text", ["missing:10m", "nan:10m", "stale:10m", "missing@lag:10m", "nan@arrivals:10m"])
def test_a_missing_metric_never_lowers_the_size(text: str) -> None:
    # The proposal is lower most of the time, so that there is always something to lower.
    falling = Load("falling", tuple(1.0 - 0.9 * n / 2880 for n in range(2880)))
    one = falling.per_worker(K8S.gamma)
    for policy in (ADAPTIVE, Follows(one)):
        for seed in (1, 2):
            records = _ran(text, policy, falling, seed)[1]
            doubted = [record.decision for record in records if record.observation.missing]
            assert len(doubted) > 100
            assert not any(decision.desired < decision.current for decision in doubted)
            assert any(record.decision.desired < record.decision.current for record in records)


@pytest.mark.parametrize("text", ["missing", "nan", "stale", "frozen", "doubled@lag"])
def test_readings_that_fail_for_a_while_delay_the_default_policy_little(text: str) -> None:
    assert _violation(text) <= _violation("") + 0.02


# Scale calls


def test_a_failed_call_leaves_the_size_unchanged_until_it_is_repeated() -> None:
    jump, _ = staircase([(0.5, 0.2), (0.5, 0.8)])
    offered = Load("jump", tuple(jump))
    policy = Follows(offered.per_worker(K8S.gamma))
    done, records = _ran("refused:90%", policy, offered)
    asked = [record for record in records if record.decision.rescale]
    assert len(asked) > 2 * len(done.track.requests) > 0
    unconfirmed = [reason for record in records for reason, _ in record.decision.notes if reason is Reason.UNCONFIRMED]
    assert len(unconfirmed) >= len(asked) - len(done.track.requests) - 1
    assert any("a fault" in record.failed for record in records)
    assert done.track.billed[-1] > done.track.billed[0]


def test_when_every_call_fails_the_size_never_changes() -> None:
    done, records = _ran("refused:100%")
    assert done.track.requests == []
    assert sum(record.decision.rescale for record in records) > 10


def test_a_call_that_succeeds_without_an_answer_is_detected() -> None:
    lost, records = _ran("unanswered:100%")
    usual, _ = _ran("")
    # The observed size confirms it, so that nothing is requested twice.
    assert lost.track == usual.track
    assert any(record.failed for record in records)


def test_a_half_applied_change_counts_as_external_and_is_corrected() -> None:
    done, records = _ran("half:100%", offered=Load("jump", tuple(staircase([(0.5, 0.2), (1, 0.9)])[0])))
    first = next(record.decision for record in records if record.decision.desired > record.decision.current + 1)
    assert done.track.requests[0][1] == first.current + (first.desired - first.current) // 2
    superseded = [text for record in records for reason, text in record.decision.notes if reason is Reason.SUPERSEDED]
    assert superseded
    assert done.track.billed[-1] >= 16 * 0.9


def test_a_delayed_call_takes_effect_that_much_later() -> None:
    class Twenty:
        def evaluate(self, _: View) -> Recommendation:
            return Recommendation(20, Reason.STEADY)

    level = Load("level", tuple(constant(0.5)))
    done, _ = _ran("delayed:62s", Twenty(), level)
    # Requested at 15 s: in the first step that begins at 77 s or later.
    assert done.track.requests == [(16, 20)]
    assert done.track.billed[15:17] == [16, 20]


# Workers


def test_workers_that_never_start_are_billed_until_they_are_cancelled() -> None:
    plant = Plant(replace(K8S, never=1.0), 10.0, 1, 2)
    plant.scale(5)
    for _ in range(1000):
        plant.advance(0.0)
    seen = plant.observe()
    assert (seen.desired, seen.ready, plant.track.billed[-1]) == (5, 2, 5)
    plant.scale(2)
    plant.advance(0.0)
    assert (plant.track.billed[-1], plant.track.restarts) == (2, 0)


def test_the_configured_share_of_workers_never_starts_or_is_slow() -> None:
    plant = Plant(replace(K8S, never=0.3, slow=0.2, gamma=1.0, sigma=0.0, cold=1.0), 10.0, 1, 1)
    plant.scale(2001)
    for _ in range(100):
        plant.advance(1e9)
    ready = plant.observe().ready
    assert ready is not None
    assert ready / 2000 == pytest.approx(0.7, abs=0.03)
    done = plant.track.position[-1] - plant.track.position[-2]
    assert done / (10 * STEP * ready) == pytest.approx(0.8 + 0.2 * 0.7, abs=0.01)


def test_a_removed_slow_worker_takes_its_own_capacity_with_it() -> None:
    plant = Plant(replace(K8S, slow=1.0, sigma=0.0, gamma=1.0), 10.0, 1, 2)
    done = []
    for size in (2, 3, 2):
        plant.scale(size)
        for _ in range(200):
            plant.advance(1e9)
        done.append((plant.track.position[-1] - plant.track.position[-2]) / STEP)
    assert done == pytest.approx([20, 27, 20])


def test_a_fault_replaces_the_crash_settings_of_the_plant_only_if_given() -> None:
    assert NONE.applied_to(K8S) == K8S
    crashing = replace(K8S, crash_every=60.0, slow=0.5, never=0.1)
    assert NONE.applied_to(crashing) == crashing
    assert parse("crash:45m,slow:7%,never:3%").applied_to(crashing) == replace(
        K8S, crash_every=2700.0, slow=0.07, never=0.03
    )
    assert _ran("crash:20m")[0].plant.crash_every == 1200


@pytest.mark.parametrize("text", ["refused", "unanswered", "half", "delayed:30s", "slow", "restart"])
def test_failing_calls_and_workers_delay_the_default_policy_by_a_bounded_time(text: str) -> None:
    assert _violation(text) <= _violation("") + 0.03


# Restarts


def test_a_restart_at_every_tick_changes_no_decision() -> None:
    short = Load("short", RAMPS.rates[:720])
    for policy in (ADAPTIVE, load(Kind.POLICY, "backlog-drain")()):
        usual, records = _ran("", policy, short)
        again, others = _ran("restart:15s", policy, short)
        assert again.track == usual.track
        assert [record.decision for record in others] == [record.decision for record in records]


def test_a_daemon_is_restarted_as_often_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[ClusterState] = []

    def noted(state: ClusterState) -> ClusterState:
        states.append(state)
        return state

    monkeypatch.setattr("autoscaler.simulation.loop.restart_daemon", noted)
    _ran("restart:1h")
    hours = [(state.at - START) // timedelta(hours=1) for state in states if state.at is not None]
    assert hours == [0, 1, 2, 3]


def test_after_a_restart_the_daemon_only_does_not_know_whether_its_call_arrived() -> None:
    spec = _spec(Follows(10.0))
    at = START + timedelta(seconds=15)
    metrics = {name: Reading(100.0, at) for name in METRICS}
    observed = Plant(K8S, 10.0, 1, 2)
    observed.advance(0.0)
    state, decision = step(spec, ClusterState(), replace(observed.observe(), at=at, metrics=metrics))
    assert decision.rescale
    back = restart_daemon(state)
    assert state.rescale is not None
    assert back.rescale is not None
    assert (state.rescale.error, "restarted" in back.rescale.error) == ("", True)
    # And it says so once.
    assert restart_daemon(back) == back
    assert replace(back, rescale=state.rescale, requested=state.requested) == state


# Together


def test_without_faults_no_random_number_is_drawn_and_nothing_is_changed() -> None:
    assert _ran("")[0].track == run(_spec(), K8S, RAMPS, 1).track


def test_faults_of_readings_do_not_change_the_plant() -> None:
    class Stays:
        def evaluate(self, _: View) -> Recommendation:
            return Recommendation(12, Reason.STEADY)

    assert _ran("missing,frozen,nan,doubled,stale", Stays())[0].track == _ran("", Stays())[0].track


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from([*DESCRIPTIONS, "missing@target", "nan@lag", "missing@engine"]), min_size=1, unique=True),
    st.integers(0, 1000),
    st.integers(1, 4),
    st.integers(8, 24),
)
def test_whatever_goes_wrong_no_size_beyond_the_limits_is_requested(
    names: Sequence[str], seed: int, least: int, most: int
) -> None:
    offered = Load("short", RAMPS.rates[:360])
    decisions: list[Decision] = []
    done = run(
        _spec(limits=Limits(least, most)),
        K8S,
        offered,
        seed,
        record=lambda record: decisions.append(record.decision),
        faults=parse(",".join(names)),
    )
    assert all(least <= size <= most for _, size in done.track.requests)
    assert all(least <= decision.desired <= most for decision in decisions)
    again = run(_spec(limits=Limits(least, most)), K8S, offered, seed, faults=parse(",".join(names)))
    assert again.track == done.track
