"""The rules of the Kubernetes HPA v2 controller as pure functions, number for number.

They follow pkg/controller/podautoscaler of https://github.com/kubernetes/kubernetes (1.33, with a tolerance for each
direction): replica_calculator.go, metrics/utilization.go and horizontal.go; each function names the one it follows.

Values are whole thousandths (`milli`), as in a Kubernetes quantity: 1.5 cores are 1500. Division drops the fraction,
and ratios are 64-bit floats, so that every rounding is the same as in Kubernetes. Past events are given with their age;
an age of 0 is now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from autoscaler.policy_api import ZERO, Select
from autoscaler_policies.shared.checks import ABOVE_0S, at_least, check

MOST = 2**31 - 1
"""The largest size Kubernetes allows (int32)."""

MOST_USAGE = 2**63 - 1
"""The largest value a metric of Kubernetes can have (int64)."""

LEGACY_WINDOW = timedelta(minutes=5)
"""The window of an HPA without `behavior` (--horizontal-pod-autoscaler-downscale-stabilization)."""

_FACTOR = 2.0  # scaleUpLimitFactor
_LEAST = 4.0  # scaleUpLimitMinimum


class MetricError(ValueError):
    """No size follows from a metric now. The message is that of the controller."""


class PodState(StrEnum):
    """The state as which a pod counts (groupPods)."""

    READY = "ready"
    UNREADY = "unready"  # starting, so that its usage does not count yet
    PENDING = "pending"  # not scheduled, or pulling images: counts as unready even if it has a metric
    MISSING = "missing"  # it has no metric
    IGNORED = "ignored"  # failed, or being deleted
    UNLISTED = "unlisted"  # it has a metric, but the pod does not exist


class Condition(StrEnum):
    """The reason for a size: that of an HPA's condition ScalingLimited, or why no size was computed."""

    WITHIN = "DesiredWithinRange"
    TOO_FEW = "TooFewReplicas"
    TOO_MANY = "TooManyReplicas"
    UP_LIMIT = "ScaleUpLimit"
    DOWN_LIMIT = "ScaleDownLimit"
    DISABLED = "ScalingDisabled"
    ABOVE_MAXIMUM = "above max"
    BELOW_MINIMUM = "below min"
    HOLD = "metric error, hold"


class PolicyType(StrEnum):
    """What a scaling policy counts."""

    PODS = "pods"
    PERCENT = "percent"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """A rate limit: pods, or percent of the size at the period's start, within a period.

    Attributes:
        type: pods or percent.
        value: the most pods or percent; 1 or more.
        period: the length of the period; above 0s.
    """

    type: PolicyType
    value: int
    period: timedelta

    def __post_init__(self) -> None:
        check(self, "value", *at_least(1))
        check(self, "period", *ABOVE_0S)


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """`behavior` of one direction (HPAScalingRules).

    Attributes:
        stabilization_window: the time within which recommendations count.
        select_policy: which of the policies counts, or DISABLED.
        policies: the rate limits; none allows nothing.
    """

    stabilization_window: timedelta
    select_policy: Select
    policies: tuple[ScalingPolicy, ...]


PODS_UP = ScalingPolicy(PolicyType.PODS, 4, timedelta(seconds=15))
ALL = ScalingPolicy(PolicyType.PERCENT, 100, timedelta(seconds=15))

SCALE_UP = ScalingRules(ZERO, Select.MAX, (PODS_UP, ALL))
"""The default of behavior.scaleUp (pkg/apis/autoscaling/v2/defaults.go, GenerateHPAScaleUpRules)."""

SCALE_DOWN = ScalingRules(LEGACY_WINDOW, Select.MAX, (ALL,))
"""The default of behavior.scaleDown (pkg/apis/autoscaling/v2/defaults.go, GenerateHPAScaleDownRules)."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How far a ratio may be from 1 without a change (Tolerances, isWithin).

    Attributes:
        down: share below the target; 1 or more: no value is ever too low.
        up: share above the target.
    """

    down: float = 0.1
    up: float = 0.1

    def hold(self, ratio: float) -> bool:
        """Whether a ratio is close enough to 1; both bounds are included."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or several equal ones.

    Attributes:
        usage: its usage or metric, milli; None: it has no metric.
        request: its request of the resource, milli; None: one of its containers has no request.
        state: its state, whether or not it has a metric.
        count: the number of such pods.
    """

    usage: int | None
    request: int | None = None
    state: PodState = PodState.READY
    count: int = 1


@dataclass(frozen=True, slots=True)
class Sized:
    """The size that one metric asks for.

    Attributes:
        replicas: the size.
        usage: the value it follows from, milli: an average, or the sum for a target value.
        utilization: percent of the request, if the target is a utilization.
    """

    replicas: int
    usage: int
    utilization: int | None = None


@dataclass(frozen=True, slots=True)
class Recommended:
    """A size that the metrics asked for some time ago, before windows and limits."""

    replicas: int
    age: timedelta


@dataclass(frozen=True, slots=True)
class Event:
    """A change of size in one direction, in replicas; always positive.

    Attributes:
        change: how many.
        age: how long ago.
    """

    change: int
    age: timedelta


@dataclass(frozen=True, slots=True)
class Limited:
    """A size within limits, and which limit it is."""

    replicas: int
    condition: Condition


@dataclass(frozen=True, slots=True)
class Stabilized:
    """A stabilized size, and the recommendations to keep."""

    replicas: int
    log: tuple[Recommended, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one evaluation by the controller.

    Attributes:
        replicas: the size it sets.
        condition: why.
        desired: the size that the metrics asked for; None if it was not computed or is unknown.
        stabilized: whether a window changed that size.
        log: the recommendations to keep.
    """

    replicas: int
    condition: Condition
    desired: int | None
    stabilized: bool
    log: tuple[Recommended, ...]


def utilization_ratio(current: int, target: int, pods: Sequence[Pod], tolerances: Tolerances) -> Sized:
    """The size by a target utilization (GetResourceReplicas).

    For scaling up, pods without a metric count with usage 0; for scaling down, they count as using their whole request,
    or the target if it is above 100 %. Unready pods count with usage 0 for scaling up, and not at all for scaling down.
    `target` is in percent of the request, which every pod that the selector finds must have.

    Raises:
        MetricError: there is no metric, no pod or no request.
    """
    share = max(100, target)

    def measured(known: Sequence[Pod]) -> tuple[float, int, int]:
        if any(pod.request is None for pod in pods if pod.state is not PodState.UNLISTED):
            raise MetricError("missing request")
        return _utilization(known, target)

    def silent(pod: Pod) -> Pod:
        return replace(pod, usage=(pod.request or 0) * share // 100)

    return _filled(current, pods, "resource", measured, silent, tolerances)


def pod_average_value(
    current: int, target: int, pods: Sequence[Pod], tolerances: Tolerances, api: str = "custom"
) -> Sized:
    """The size by a target average of a pods metric, or of a resource in its own unit (calcPlainMetricReplicas).

    For scaling up, pods without a metric count with usage 0; for scaling down, they count as being at the target.
    Unready pods count with usage 0 for scaling up, and not at all for scaling down. `target` is in milli and above 0;
    the error message names `api` (custom or resource) if there is no metric.

    Raises:
        MetricError: there is no metric, or no pod.
    """
    return _filled(
        current, pods, api, lambda known: _average(known, target), lambda pod: replace(pod, usage=target), tolerances
    )


def _filled(
    current: int,
    pods: Sequence[Pod],
    api: str,
    measured: Callable[[Sequence[Pod]], tuple[float, int, int | None]],
    silent: Callable[[Pod], Pod],
    tolerances: Tolerances,
) -> Sized:
    """The size by a ratio, computed again if there are unready pods, or pods without a metric (filled by `silent`)."""
    reported, unready, missing = _grouped(pods, api)
    ratio, usage, percent = measured(reported)
    waiting = unready if ratio > 1.0 else []
    if not waiting and not missing:
        ready = _count(pod for pod in reported if pod.state is not PodState.UNLISTED)
        return Sized(current if tolerances.hold(ratio) else _size(ratio * ready), usage, percent)
    filled = [*reported, *(replace(pod, usage=0) for pod in waiting)]
    if ratio < 1.0:
        filled += map(silent, missing)
    elif ratio > 1.0:
        filled += [replace(pod, usage=0) for pod in missing]
    return Sized(_rebalanced(current, ratio, measured(filled)[0], _count(filled), tolerances), usage, percent)


def object_or_external_value(
    current: int, ready: int, target: int, values: Sequence[int], tolerances: Tolerances
) -> Sized:
    """The size by a target value of an object or external metric (getUsageRatioReplicaCount).

    The ratio multiplies the number of `ready` pods. If the current size is 0, the ratio itself is the size, without a
    tolerance. `values` has the value, or the series of an external metric, which are summed. It and `target` are milli.
    """
    usage = 0
    for value in values:
        usage += value
        if usage > MOST_USAGE:
            usage = MOST_USAGE
            break
    ratio = float(usage) / float(target)
    if current == 0:
        return Sized(_size(ratio), usage)
    return Sized(current if tolerances.hold(ratio) else _size(ratio * ready), usage)


def per_pod_value(status: int, target: int, values: Sequence[int], tolerances: Tolerances) -> Sized:
    """The size by a target average value of an object or external metric (GetExternalPerPodMetricReplicas).

    The size is the sum divided by the target. A negative sum counts as an overflow, as in the original. Too large a
    usage gives the largest size, even if the original's result depends on the processor. `status` is the number of
    existing pods (status.replicas); `target` and `values` are in milli.
    """
    usage = 0
    for value in values:
        usage += value
        if not 0 <= usage <= MOST_USAGE:
            usage = MOST_USAGE
            break
    held = status > 0 and tolerances.hold(float(usage) / (float(target) * float(status)))
    size = status if held else _size(float(usage) / float(target))
    if float(usage) < float(MOST_USAGE):
        usage = math.ceil(float(usage) / float(max(status, 1)))
    return Sized(size, usage)


def change_within(period: timedelta, events: Sequence[Event]) -> int:
    """By how many replicas the size changed within a period (getReplicasChangePerPeriod)."""
    return sum(event.change for event in events if event.age < period)


def scale_up_limit(current: int, rules: ScalingRules, ups: Sequence[Event], downs: Sequence[Event]) -> int:
    """The largest size that the policies allow; may be below the present one (calculateScaleUpLimitWithScalingRules).

    The percentage is taken of the size at the period's start and rounded up, in floats: 10 % of 100 give 111, since
    100 x 1.1 is 110.00000000000001.
    """
    return _limit(current, rules, ups, downs, 1)


def scale_down_limit(current: int, rules: ScalingRules, ups: Sequence[Event], downs: Sequence[Event]) -> int:
    """The smallest size that the policies allow; may be above the present one (calculateScaleDownLimitWithBehaviors).

    The rest after a percentage of the size at the period's start is rounded down: 72 less 10 % is 64.
    """
    return _limit(current, rules, ups, downs, -1)


def _limit(current: int, rules: ScalingRules, ups: Sequence[Event], downs: Sequence[Event], way: int) -> int:
    if rules.select_policy is Select.DISABLED:
        return current
    sizes = []
    for policy in rules.policies:
        start = _at_start(current, policy.period, ups, downs)
        if policy.type is PolicyType.PODS:
            sizes.append(start + way * policy.value)
        else:
            share = float(start) * (1 + way * float(policy.value) / 100)
            sizes.append(math.ceil(share) if way > 0 else int(share))
    if (rules.select_policy is Select.MIN) == (way > 0):
        return min(sizes, default=MOST)
    return max(sizes, default=-MOST - 1)


def rate_limit(
    current: int,
    desired: int,
    minimum: int,
    maximum: int,
    up: ScalingRules = SCALE_UP,
    down: ScalingRules = SCALE_DOWN,
    ups: Sequence[Event] = (),
    downs: Sequence[Event] = (),
) -> Limited:
    """A stabilized size within the rate limits and bounds (convertDesiredReplicasWithBehaviorRate)."""
    if desired > current:
        limit = max(current, scale_up_limit(current, up, ups, downs))
        top, condition = (limit, Condition.UP_LIMIT) if limit < maximum else (maximum, Condition.TOO_MANY)
        if desired > top:
            return Limited(top, condition)
    elif desired < current:
        limit = min(current, scale_down_limit(current, down, ups, downs))
        floor, condition = (limit, Condition.DOWN_LIMIT) if limit > minimum else (minimum, Condition.TOO_FEW)
        if desired < floor:
            return Limited(floor, condition)
    return Limited(desired, Condition.WITHIN)


def legacy_rate_limit(current: int, desired: int, minimum: int, maximum: int) -> Limited:
    """A size within bounds and the fixed limit of an HPA without `behavior` (convertDesiredReplicasWithRules).

    At most twice the size, or 4, in one evaluation.
    """
    limit = int(max(_FACTOR * float(current), _LEAST))
    top, condition = (limit, Condition.UP_LIMIT) if limit < maximum else (maximum, Condition.TOO_MANY)
    if desired < minimum:
        return Limited(minimum, Condition.TOO_FEW)
    if desired > top:
        return Limited(top, condition)
    return Limited(desired, Condition.WITHIN)


def stabilization(
    current: int,
    desired: int,
    up_window: timedelta,
    down_window: timedelta,
    recommendations: Sequence[Recommended],
) -> Stabilized:
    """The size nearest to the present one that recent recommendations allow (stabilizeRecommendationWithBehaviors).

    It goes up to the smallest within the upper window, and down to the largest within the lower one. The present
    recommendation replaces the last one that is older than both windows.
    """
    least = min([desired, *(seen.replicas for seen in recommendations if seen.age < up_window)])
    greatest = max([desired, *(seen.replicas for seen in recommendations if seen.age < down_window)])
    old = [index for index, seen in enumerate(recommendations) if seen.age > max(up_window, down_window)]
    return Stabilized(min(max(current, least), greatest), _kept(desired, recommendations, old))


def stabilization_down_only(desired: int, window: timedelta, recommendations: Sequence[Recommended]) -> Stabilized:
    """The largest size asked for within the window, for an HPA without `behavior` (stabilizeRecommendation)."""
    greatest = max([desired, *(seen.replicas for seen in recommendations if seen.age <= window)])
    old = [index for index, seen in enumerate(recommendations) if seen.age > window]
    return Stabilized(greatest, _kept(desired, recommendations, old))


def combined(current: int, proposals: Sequence[int | None]) -> int | None:
    """The largest size that a metric asks for, or None to keep the present one (computeReplicasForMetrics).

    A failed metric (None) forbids fewer replicas. If all metrics have failed, more are forbidden too.
    """
    sizes = [size for size in proposals if size is not None]
    if not sizes:
        return None
    size = max(sizes)
    return None if len(sizes) < len(proposals) and size < current else max(size, 0)


def controller(
    current: int,
    minimum: int,
    maximum: int,
    proposals: Sequence[int | None],
    recommendations: Sequence[Recommended] | None = None,
    behavior: tuple[ScalingRules, ScalingRules] | None = None,
    ups: Sequence[Event] = (),
    downs: Sequence[Event] = (),
) -> Outcome:
    """One evaluation by the controller (reconcileAutoscaler).

    Args:
        current: the current size (spec.replicas).
        minimum: minReplicas; the controller leaves a size of 0 alone unless this is 0.
        maximum: maxReplicas.
        proposals: the size that each metric asks for, None if it failed.
        recommendations: those kept from the evaluation before; None: the controller has just started, and begins its
            window with the present size.
        behavior: the rules up and down; None: an HPA without `behavior`.
        ups: changes of size upwards.
        downs: changes of size downwards.
    """
    log = (Recommended(current, ZERO),) if recommendations is None else tuple(recommendations)
    if current == 0 and minimum != 0:
        return Outcome(0, Condition.DISABLED, None, stabilized=False, log=log)
    if current > maximum:
        return Outcome(maximum, Condition.ABOVE_MAXIMUM, None, stabilized=False, log=log)
    if current < minimum:
        return Outcome(minimum, Condition.BELOW_MINIMUM, None, stabilized=False, log=log)
    desired = combined(current, proposals)
    if desired is None:
        return Outcome(current, Condition.HOLD, None, stabilized=False, log=log)
    if behavior is None:
        stabilized = stabilization_down_only(desired, LEGACY_WINDOW, log)
        limited = legacy_rate_limit(current, stabilized.replicas, minimum, maximum)
    else:
        up, down = behavior
        stabilized = stabilization(current, desired, up.stabilization_window, down.stabilization_window, log)
        limited = rate_limit(current, stabilized.replicas, minimum, maximum, up, down, ups, downs)
    return Outcome(limited.replicas, limited.condition, desired, stabilized.replicas != desired, stabilized.log)


def _grouped(pods: Sequence[Pod], api: str) -> tuple[list[Pod], list[Pod], list[Pod]]:
    """Pods whose metric counts, unready ones, and those without a metric."""
    if all(pod.usage is None for pod in pods):
        raise MetricError(f"no metrics returned from {api} metrics API")
    if all(pod.state is PodState.UNLISTED for pod in pods):
        raise MetricError("no pods returned by selector while calculating replica count")
    reported, unready, missing = [], [], []
    for pod in pods:
        if pod.state is PodState.IGNORED:
            continue
        if pod.state is PodState.PENDING:
            unready.append(pod)
        elif pod.usage is None or pod.state is PodState.MISSING:
            missing.append(pod)
        elif pod.state is PodState.UNREADY:
            unready.append(pod)
        else:
            reported.append(pod)
    if not reported:
        raise MetricError("did not receive metrics for targeted pods (pods might be unready)")
    return reported, unready, missing


def _count(pods: Iterable[Pod]) -> int:
    return sum(pod.count for pod in pods)


def _utilization(pods: Sequence[Pod], target: int) -> tuple[float, int, int]:
    """Ratio to the target, average usage, percent of the request (GetResourceUtilizationRatio)."""
    known = [pod for pod in pods if pod.state is not PodState.UNLISTED]
    usage = sum((pod.usage or 0) * pod.count for pod in known)
    requested = sum((pod.request or 0) * pod.count for pod in known)
    if not requested:
        raise MetricError("no metrics returned matched known pods")
    percent = min(_divided(usage * 100, requested), MOST)
    return float(percent) / float(target), _divided(usage, _count(known)), percent


def _average(pods: Sequence[Pod], target: int) -> tuple[float, int, None]:
    """Ratio to the target and average (GetMetricUsageRatio)."""
    usage = _divided(sum((pod.usage or 0) * pod.count for pod in pods), _count(pods))
    return float(usage) / float(target), usage, None


def _rebalanced(current: int, before: float, ratio: float, count: int, tolerances: Tolerances) -> int:
    """The size with silent pods filled in; the present one if that would reverse the direction."""
    if tolerances.hold(ratio) or (before < 1.0 < ratio) or (ratio < 1.0 < before):
        return current
    size = _size(ratio * count)
    turned = size > current if ratio < 1.0 else size < current
    return current if turned else size


def _at_start(current: int, period: timedelta, ups: Sequence[Event], downs: Sequence[Event]) -> int:
    """The size at the start of a period."""
    return current - change_within(period, ups) + change_within(period, downs)


def _kept(desired: int, recommendations: Sequence[Recommended], old: Sequence[int]) -> tuple[Recommended, ...]:
    """The recommendations with the present one, which replaces the last old one."""
    log = list(recommendations)
    if old:
        log[old[-1]] = Recommended(desired, ZERO)
    else:
        log.append(Recommended(desired, ZERO))
    return tuple(log)


def _divided(number: int, by: int) -> int:
    """A quotient of whole numbers, rounded towards zero as in Go."""
    quotient = abs(number) // by
    return quotient if number >= 0 else -quotient


def _size(number: float) -> int:
    """Rounded up, at most the largest size; in Go, a conversion that overflows is undefined."""
    return min(math.ceil(number), MOST)
