"""A reading with one value per worker and the mean of the job: policies that average replicas use the mean alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from autoscaler.core.model import Observation, Policy, Reading, Reason, View
from autoscaler.testing.contracts import views
from autoscaler_policies.aws.rules import Aggregation, Step
from autoscaler_policies.aws.step_scaling import AwsStep, Comparison
from autoscaler_policies.aws.target_tracking import AwsTargetTracking
from autoscaler_policies.flink_operator.policy import FlinkOperator, _busiest
from autoscaler_policies.hpa.policy import Hpa, Metric, MetricType
from autoscaler_policies.keda.policy import KedaLag, Trigger
from autoscaler_policies.research.daedalus import Daedalus
from autoscaler_policies.research.ds2 import Ds2
from autoscaler_policies.rules.target_tracking import TargetTracking
from autoscaler_policies.rules.threshold import Aggregate, Rule, Threshold
from autoscaler_policies.shared.readings import busy

AVERAGING: Mapping[str, Policy] = {
    "target-tracking": TargetTracking("utilization", 0.7),
    "threshold": Threshold(
        up=(Rule(metric="utilization", above=0.8, hold=timedelta(seconds=30)),),
        down=(Rule(metric="utilization", below=0.4),),
    ),
    **{
        f"hpa {kind}": Hpa(metrics=(Metric(metric="utilization", target=target, type=kind),))
        for kind, target in (
            (MetricType.UTILIZATION, 70),
            (MetricType.AVERAGE_VALUE, 0.7),
            (MetricType.VALUE, 0.7),
            (MetricType.VALUE_PER_REPLICA, 0.7),
        )
    },
    "aws-target-tracking": AwsTargetTracking(metric="utilization", target=0.7, high_periods=1, low_periods=1),
    "aws-step": AwsStep(
        metric="utilization",
        threshold=0.4,
        comparison=Comparison.AT_MOST,
        steps=(Step(upper=0.0, adjustment=-1),),
        warmup=timedelta(0),
    ),
    "keda-lag": KedaLag(triggers=(Trigger(metric="utilization", lag_threshold=0.1),)),
    "daedalus": Daedalus(),
    "ds2": Ds2(),
    "flink-operator": FlinkOperator(busy="utilization"),
}


def shown(view: View, workers: random.Random | None) -> View:
    """The view with utilization as one mean at every observation, or also with values of the workers around it."""

    def of(metrics: Mapping[str, Reading], mean: float) -> Mapping[str, Reading]:
        known = metrics.get("utilization")
        if known is None:
            return metrics
        if workers is None:
            return {**metrics, "utilization": Reading(mean, known.at)}
        numbers = tuple(workers.random() for _ in range(workers.choice((1, max(view.ready - 1, 1), view.ready + 2))))
        return {**metrics, "utilization": Reading(numbers, known.at, mean=mean)}

    def seen(observation: Observation) -> Observation:
        return replace(observation, metrics=of(observation.metrics, (observation.at.second % 20) / 20))

    past = tuple(seen(observation) for observation in view.past)
    return replace(view, past=past, metrics=past[-1].metrics)


@pytest.mark.parametrize("name", AVERAGING)
def test_policies_that_average_use_the_mean(name: str) -> None:
    policy = AVERAGING[name]
    chance = random.Random(7)  # noqa: S311 - a table that is the same each time
    decided = set()
    for view in views(("utilization",)):
        by_mean, by_worker = shown(view, None), shown(view, chance)
        known = getattr(policy, "learn", None)
        if known is not None:
            memory = known(by_mean)
            assert known(by_worker) == memory
            by_mean, by_worker = (one.with_learned(one.learned, memory) for one in (by_mean, by_worker))
        found = policy.evaluate(by_mean)
        assert policy.evaluate(by_worker) == found
        decided.add(found.replicas if found.reason is not Reason.MISSING else None)
    assert len(decided) > 1, "it decides by what it reads"


def test_a_policy_that_learns_capacity_uses_the_mean_as_utilization_of_the_job() -> None:
    view = shown(views(("utilization",), 1)[0], None)
    reading = Reading((0.2, 0.95), view.now, mean=0.5)
    view = replace(view, metrics={"utilization": reading})
    assert busy(view, "utilization") == (0.5,)
    assert _busiest(reading) == 0.5
    assert view.number("utilization") == 0.5


def test_a_rule_can_use_the_hottest_worker() -> None:
    view = shown(views(("utilization",), 1)[0], None)
    at = view.now
    view = replace(view, metrics={"utilization": Reading((0.2, 0.95), at, mean=0.5)})
    for aggregate, expected in ((Aggregate.MAX, 0.95), (Aggregate.MIN, 0.2), (Aggregate.MEAN, 0.5)):
        rule = Rule(metric="utilization", above=0.9, aggregate=aggregate)
        assert rule.number(view.metrics["utilization"]) == expected
        assert (Threshold(up=(rule,)).evaluate(view).reason is Reason.ABSTAINED) is (aggregate is not Aggregate.MAX)


def test_an_alarm_can_use_the_hottest_worker() -> None:
    view = shown(views(("utilization",), 1)[0], None)
    reading = Reading((0.2, 0.95), view.now, mean=0.5)
    seen = Observation(at=view.now, desired=3, ready=3, metrics={"utilization": reading})
    view = replace(view, current=3, ready=3, metrics=seen.metrics, past=(seen,))
    for aggregation, expected in ((Aggregation.MAXIMUM, 0.95), (Aggregation.AVERAGE, 0.5)):
        policy = AwsStep(
            metric="utilization",
            threshold=0.9,
            comparison=Comparison.ABOVE,
            steps=(Step(lower=0.0, adjustment=1),),
            aggregation=aggregation,
        )
        assert policy.evaluate(view).inputs["utilization"] == expected
