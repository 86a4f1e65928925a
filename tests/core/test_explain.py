"""Explanations word for word, because an operator reads them at night."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from textwrap import dedent

import pytest

from autoscaler.core.explain import DeferredVerdict, explain, readings, summarize_decision
from autoscaler.core.model import (
    Behaviour,
    Bound,
    ClusterSpec,
    ClusterState,
    Decision,
    EngineStatus,
    Fact,
    JobState,
    Limits,
    NamedPolicy,
    Observation,
    Proposal,
    Rate,
    RateKind,
    Reading,
    Reason,
    Recommendation,
    Verdict,
    View,
)
from autoscaler.core.state import call_failed
from autoscaler.core.step import step
from autoscaler.core.wording import count_of, format_number

NOW = datetime(2026, 1, 31, 3, 12, 45, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Says:
    """A policy that gives a fixed answer."""

    def __init__(self, replicas: int | None, reason: Reason, detail: str = "", **inputs: float) -> None:
        self.answer = Recommendation(replicas, reason, inputs, detail)

    def evaluate(self, view: View) -> Recommendation:
        del view
        return self.answer


def spec(*policies: Says, up: Behaviour | None = None, down: Behaviour | None = None) -> ClusterSpec:
    names = ("drain", "cpu", "rules")
    return ClusterSpec(
        name="orders",
        limits=Limits(1, 10),
        policies=tuple(NamedPolicy(name, policy) for name, policy in zip(names, policies, strict=False)),
        up=up or Behaviour(),
        down=down or Behaviour(window=timedelta(minutes=5)),
        metrics=("lag", "arrivals"),
        engine=True,
    )


def observation(at: datetime = NOW, desired: int = 3, ready: int = 3) -> Observation:
    engine = EngineStatus(
        job=JobState.RUNNING,
        slots=ready,
        parallelism=ready,
        partitions=12,
        running_since=at - timedelta(hours=5, minutes=12),
        last_checkpoint=at - 4 * SECOND,
        restarts=1,
    )
    metrics = {"lag": Reading(12345.6, at - 2 * SECOND), "arrivals": Reading(181.25, at)}
    return Observation(at=at, desired=desired, ready=ready, metrics=metrics, missing={}, engine=engine)


def explanation(a_spec: ClusterSpec, seen: Observation, state: ClusterState | None = None) -> str:
    after, decision = step(a_spec, state or ClusterState(), seen)
    return explain(after.past[-1], decision)


def text(block: str) -> str:
    return dedent(block).strip()


def test_a_rescale_to_the_size_that_the_policies_asked_for() -> None:
    drain = Says(6, Reason.ABOVE, "181/s and 12346 waiting need 6", lag=12345.6)
    cpu = Says(4, Reason.ABOVE, cpu=0.8123)
    rules = Says(None, Reason.ABSTAINED)
    assert explanation(spec(drain, cpu, rules), observation()) == text(
        """
        2026-01-31 03:12:45 UTC: cluster orders is scaled up from 3 to 6, as the policies asked.

        What was read:
          - The target has 3 replicas, all of them up.
          - The job is running for 5 h 12 min: 3 slots registered, 3 in use, 12 partitions, 1 restart so far, last checkpoint or batch 4 s ago.
          - lag was 12346, 2 s ago.
          - arrivals was 181.2, just now.

        What the policies asked for:
          - drain asked for 6: 181/s and 12346 waiting need 6.
          - cpu asked for 4 (above; cpu 0.8123).
          - rules made no recommendation (abstained).
          - The greatest of these counts: 6.

        What the guards did:
          - Nothing was changed by freshness, settling, tolerance, the stabilization window, the rate limit, the cooldown, the cap of what the job can use, the useful sizes, the contention with another controller, what the target itself allows and the bounds.
        """  # noqa: E501 - a golden text
    )


class Least:
    """The least of the sizes that the policies asked for."""

    def __str__(self) -> str:
        return "min(p0, p1)"

    def combine(self, sizes: Mapping[str, int | None], current: int) -> float | None:
        return min((size for size in sizes.values() if size is not None), default=current)


class Half(Least):
    """Half of the sum, a size that no policy asked for."""

    def combine(self, sizes: Mapping[str, int | None], current: int) -> float | None:
        return sum(size or current for size in sizes.values()) / 2


def test_sizes_that_are_not_combined_by_the_greatest() -> None:
    a_spec = spec(Says(6, Reason.ABOVE, "6 are needed"), Says(4, Reason.ABOVE, "4 are needed"))
    explained = explanation(replace(a_spec, combine=Least()), observation())
    assert "  - Combined by min(p0, p1), that is 4.\n" in explained
    assert "greatest" not in explained


def test_a_rescale_that_the_guards_limited() -> None:
    up = Behaviour(rates=(Rate(RateKind.REPLICAS, 2, timedelta(minutes=1)),))
    explained = explanation(spec(Says(9, Reason.ABOVE, "the backlog is an hour"), up=up), observation())
    assert explained.startswith(
        "2026-01-31 03:12:45 UTC: cluster orders is scaled up from 3 to 5, not to 9 as the policies asked, "
        "because of the rate limit: max of 2 replicas in 60 s allows 5.\n"
    )
    assert "  - The rate limit changed 9 to 5: max of 2 replicas in 60 s allows 5.\n" in explained
    assert "  - The useful sizes kept 5: " in explained


def summary(a_spec: ClusterSpec) -> str:
    return summarize_decision(step(a_spec, ClusterState(), observation())[1])


def test_the_summary_has_the_deciding_policy_and_the_changes_by_guards() -> None:
    drain, cpu = Says(6, Reason.ABOVE, "the backlog is an hour"), Says(4, Reason.ABOVE)
    up = Behaviour(rates=(Rate(RateKind.REPLICAS, 2, timedelta(minutes=1)),))
    assert summary(spec(drain, cpu)) == "drain: the backlog is an hour"
    assert summary(spec(cpu)) == "drain: above"
    assert summary(spec(drain, cpu, up=up)) == (
        "drain: the backlog is an hour; rate_limit changed 6 to 5: max of 2 replicas in 60 s allows 5"
    )
    combined = replace(spec(Says(3, Reason.STEADY), Says(8, Reason.ABOVE, "8 are needed")), combine=Half())
    assert summary(combined).startswith("cpu: 8 are needed")
    silent = replace(
        step(spec(drain), ClusterState(), observation())[1], verdicts=(Verdict(Reason.BOUNDS, 9, 3, Reason.BOUNDS),)
    )
    assert summarize_decision(silent) == "drain: the backlog is an hour; bounds changed 9 to 3"


def test_the_summary_of_a_decision_without_a_proposal_has_the_reason_of_a_policy() -> None:
    assert summary(spec(Says(None, Reason.MISSING, "no trusted reading of lag"))) == "drain: no trusted reading of lag"
    assert summary(spec(Says(None, Reason.MISSING))) == "missing"


def test_a_rescale_without_a_policy_that_asked_for_it() -> None:
    a_spec = replace(spec(Says(None, Reason.LEARNING, "capacity not known yet")), limits=Limits(5, 10))
    assert explanation(a_spec, observation()).startswith(
        "2026-01-31 03:12:45 UTC: cluster orders is scaled up from 3 to 5, because of the bounds: 5 to 10 is allowed.\n"
    )


def test_why_the_size_was_not_lowered_yet() -> None:
    a_spec = spec(Says(2, Reason.BELOW, "2 would do"))
    state = ClusterState(
        at=NOW - 15 * SECOND,
        desired=3,
        watched_since=NOW - timedelta(hours=1),
        proposals=(Proposal(NOW - timedelta(minutes=2), 3), Proposal(NOW - 15 * SECOND, 3)),
    )
    explained = explanation(a_spec, observation(), state)
    assert explained.startswith(
        "2026-01-31 03:12:45 UTC: cluster orders stays at 3, although the policies asked for fewer (2), because of "
        "the stabilization window: a size of 3 was needed within the last 300 s."
    )
    assert "  - The stabilization window changed 2 to 3: a size of 3 was needed within the last 300 s.\n" in explained
    fresh = explanation(a_spec, observation())
    assert "the stabilization window, which has not been seen in full yet: watched for 0 s of 300 s." in fresh


def test_why_nothing_changes_when_all_is_well() -> None:
    explained = explanation(spec(Says(3, Reason.STEADY, "3 fit")), observation())
    assert explained.startswith(
        "2026-01-31 03:12:45 UTC: cluster orders stays at 3, because the policies ask for no other size."
    )


def test_a_size_without_ready_replicas_is_not_reported_as_fitting_the_load() -> None:
    seen = replace(observation(desired=10, ready=0), remarks=("10 pods are in CrashLoopBackOff",))
    explained = explanation(spec(Says(10, Reason.STEADY, "10 fit")), seen)
    assert explained.startswith(
        "2026-01-31 03:12:45 UTC: cluster orders stays at 10, none of which is up, because the policies asked for no "
        "more."
    )
    wanted = explanation(spec(Says(10, Reason.ABOVE, "10 are needed")), replace(seen, desired=5))
    assert wanted.startswith(
        "2026-01-31 03:12:45 UTC: cluster orders stays at 5, none of which is up, although the policies asked for more "
        "(10), because of settling: none of 5 replicas is up (10 pods are in CrashLoopBackOff): a step up waits until "
        "one is."
    )
    # A size of zero has no replicas to report.
    assert "stays at 0, because" in explanation(
        replace(spec(Says(0, Reason.STEADY)), limits=Limits(0, 10)), observation(desired=0, ready=0)
    )


def test_a_refused_change_is_not_reported_as_made() -> None:
    a_spec = spec(Says(6, Reason.ABOVE, "6 are needed"))
    state, decision = step(a_spec, ClusterState(), observation())
    seen = state.past[-1]
    assert explain(seen, decision, failed="403 Forbidden").startswith(
        "2026-01-31 03:12:45 UTC: cluster orders was to be scaled up from 3 to 6, as the policies asked, but the "
        "change has not been made: 403 Forbidden.\n"
    )
    after, again = step(a_spec, call_failed(state, "403 Forbidden"), observation(NOW + 15 * SECOND))
    assert explain(after.past[-1], again).startswith(
        "2026-01-31 03:13:00 UTC: cluster orders is to be scaled up from 3 to 6 again, as the policies asked: "
        "the target did not accept the change from 3 to 6: 403 Forbidden.\n"
    )
    assert "would be scaled up from 3 to 6" in explain(after.past[-1], again, dry_run=True)
    # A size other than the refused one is not a second attempt.
    other_spec = spec(Says(4, Reason.ABOVE, "4 will do"))
    after, other = step(other_spec, call_failed(state, "403 Forbidden"), observation(NOW + 15 * SECOND))
    assert explain(after.past[-1], other).startswith(
        "2026-01-31 03:13:00 UTC: cluster orders is scaled up from 3 to 4, as the policies asked.\n"
    )


def test_missing_and_stale_input_is_explained_with_its_reason() -> None:
    a_spec = spec(Says(1, Reason.BELOW, "1 would do"), Says(None, Reason.FAILED, "raised ZeroDivisionError: x"))
    seen = Observation(
        at=NOW,
        desired=3,
        ready=1,
        metrics={"lag": Reading(1.0, NOW - timedelta(minutes=10))},
        missing={"arrivals": "prometheus: no sample", "engine": "refused"},
    )
    explained = explanation(a_spec, seen)
    assert (
        "stays at 3, although the policies asked for fewer (1), because of freshness (nothing is lowered" in explained
    )
    assert "  - The target was set to 3 replicas; 1 is up.\n" in explained
    assert "  - The engine could not be asked: refused.\n" in explained
    assert "  - arrivals could not be read: prometheus: no sample.\n" in explained
    assert "  - lag could not be read: stale: 600 s old, 60 s allowed.\n" in explained
    assert "  - cpu failed: raised ZeroDivisionError: x.\n" in explained


def test_an_unknown_target_is_left_alone() -> None:
    seen = Observation(at=NOW, desired=None, ready=None, metrics={}, missing={"target": "no route to the host"})
    explained = explanation(spec(Says(9, Reason.ABOVE)), seen, ClusterState(at=NOW - 15 * SECOND, desired=4))
    assert explained.startswith(
        "2026-01-31 03:12:45 UTC: cluster orders is not scaled, because the size of its target is unknown; "
        "4 is assumed."
    )
    assert "  - The target could not be asked: no route to the host.\n" in explained


def test_the_outcome_of_a_rescale_is_explained() -> None:
    a_spec = spec(Says(6, Reason.ABOVE))
    state, _ = step(a_spec, ClusterState(), observation())
    waiting = explanation(a_spec, observation(NOW + 15 * SECOND, desired=6, ready=3), state)
    assert "stays at 6, because the policies asked for the current size" in waiting
    assert "  - The target was set to 6 replicas; 3 are up.\n" in waiting
    done = explanation(a_spec, observation(NOW + 15 * SECOND, desired=6, ready=6), state)
    assert (
        "What happened meanwhile:\n"
        "  - The rescale from 3 to 6: after 15 s the target has the new number of replicas ready.\n" in done
    )
    failed = explanation(a_spec, observation(NOW + 15 * SECOND), call_failed(state, "the target said 503"))
    assert "  - The target did not accept the change from 3 to 6: the target said 503." in failed


def test_a_dry_run_is_marked() -> None:
    seen = observation()
    _, decision = step(spec(Says(6, Reason.ABOVE)), ClusterState(), seen)
    assert explain(seen, decision, dry_run=True).startswith(
        "2026-01-31 03:12:45 UTC: cluster orders would be scaled up from 3 to 6, as the policies asked. "
        "This is a dry run: the target was not called."
    )


def test_an_empty_decision_can_be_explained() -> None:
    decision = Decision(cluster="orders", at=NOW, current=0, proposed=0, desired=0, reason=Reason.ABSTAINED)
    assert explain(Observation(at=NOW, desired=0, ready=None), decision) == text(
        """
        2026-01-31 03:12:45 UTC: cluster orders stays at 0, because no policy asked for anything.

        What was read:
          - The target was set to 0 replicas; it does not report how many are up.
          - No metric is configured.

        What the policies asked for:
          - No policy is configured.

        What the guards did:
          - No guard was applied.
        """
    )


def test_readings_are_explained_one_by_one() -> None:
    metrics = {
        "cpu": Reading((0.25, 0.5), NOW - timedelta(days=3, hours=4)),
        "hot": Reading((0.25, 0.5, 1.0), NOW, mean=0.4375),
        "odd": Reading(math.nan, NOW + 90 * SECOND),
        "small": Reading(0.000123456, NOW - timedelta(minutes=3, seconds=20)),
    }
    seen = Observation(
        at=NOW, desired=1, ready=1, metrics=metrics, engine=EngineStatus(job=JobState.UNKNOWN, max_parallelism=128)
    )
    assert readings(seen) == [
        ("target", "The target has 1 replica, all of them up."),
        ("engine", "The job is in an unknown state: at most 128 usable."),
        ("cpu", "0.25, 0.5 (one per replica), 3 d 4 h ago"),
        ("hot", "0.4375 (mean; 1 at the hottest of 3 workers), just now"),
        ("odd", "nan, 1 min 30 s in the future"),
        ("small", "0.0001235, 3 min 20 s ago"),
    ]


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (Reason.FAILED, "because a policy failed and no other asked for anything"),
        (Reason.MISSING, "because what the policies need could not be read"),
        (Reason.LEARNING, "because the policies have not seen enough yet"),
        (Reason.ABSTAINED, "because no policy asked for anything"),
    ],
)
def test_why_nothing_changes_when_no_policy_asks(reason: Reason, says: str) -> None:
    seen = observation()
    _, decision = step(spec(Says(None, reason)), ClusterState(), seen)
    assert f"stays at 3, {says}." in explain(seen, decision)


def test_a_single_guard_without_objection_is_named() -> None:
    seen = observation()
    verdict = Verdict(Reason.BOUNDS, 3, 3, Reason.BOUNDS)
    decision = Decision(
        cluster="orders",
        at=NOW,
        current=3,
        proposed=3,
        desired=3,
        reason=Reason.STEADY,
        recommendations=(),
        verdicts=(verdict,),
    )
    assert "Nothing was changed by the bounds." in explain(seen, decision)


def test_readings_omit_an_unknown_size() -> None:
    assert readings(Observation(at=NOW, desired=None, ready=None, metrics={"lag": Reading(1.0, NOW)})) == [
        ("lag", "1, just now")
    ]


def test_remarks_of_the_target_are_explained() -> None:
    pending = "2 pods pending: Insufficient cpu"
    observation = Observation(at=NOW, desired=4, ready=2, metrics={"lag": Reading(5.0, NOW, 12)}, remarks=(pending,))
    state, decision = step(spec(Says(4, Reason.STEADY)), ClusterState(), observation)
    text = explain(state.past[-1], decision)
    assert "The target reports: 2 pods pending: Insufficient cpu." in text
    assert "lag was 5 (12 partitions), just now." in text


def test_unreachable_limits_of_the_target_are_the_reason_and_not_the_load() -> None:
    held = Observation(at=NOW, desired=2, ready=2, ceiling=Bound(3, "the quota is used up"))
    limited = replace(spec(Says(2, Reason.STEADY)), limits=Limits(4, 9))
    state, decision = step(limited, ClusterState(), held)
    assert decision.reason is Reason.BOUNDS
    text = explain(state.past[-1], decision)
    assert "stays at 2, because of the bounds: 4 to 9 is allowed, but the quota is used up." in text


def test_a_deferred_verdict_looks_like_the_verdict_in_words() -> None:
    fact = Fact("cooldown", {"passed": timedelta(seconds=5), "pause": timedelta(seconds=60)})
    deferred = DeferredVerdict(Reason.COOLDOWN, 3, 2, Reason.COOLDOWN, fact)
    plain = Verdict(Reason.COOLDOWN, 3, 2, Reason.COOLDOWN, deferred.detail)
    assert deferred.detail
    assert (repr(deferred), deferred, hash(deferred)) == (repr(plain), plain, hash(plain))


def test_numbers_that_are_not_finite_are_shown_unchanged() -> None:
    assert [format_number(value) for value in (math.nan, math.inf, -math.inf)] == ["nan", "inf", "-inf"]


def test_a_deferred_verdict_does_not_equal_a_tuple() -> None:
    assert DeferredVerdict(Reason.CAP, 3, 2, Reason.CAP, "a reason") != ("cap", 3, 2, "cap", "a reason")


def test_only_a_count_of_one_has_a_singular_noun() -> None:
    assert [count_of(amount, "cluster") for amount in (0, 1, 2)] == ["0 clusters", "1 cluster", "2 clusters"]
