"""One step of the decision machine. The daemon, replay, simulate and backtest all call this one function.

The results that stages pass on are not frozen: they never leave the step, and this halves the time for using them.
"""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.core.combine import combine
from autoscaler.core.decide import decide, hold
from autoscaler.core.evaluate import evaluate
from autoscaler.core.guards import GuardContext, guard, guard_context
from autoscaler.core.learn import learn
from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Observation, Verdict
from autoscaler.core.rescale import settle
from autoscaler.core.trust import trust

Decide = Callable[[ClusterSpec, ClusterState, Observation], tuple[ClusterState, Decision]]
"""A function that decides: `step`, or one that it is compared with."""


def step(
    spec: ClusterSpec,
    state: ClusterState,
    observation: Observation,
    guards: Callable[[GuardContext], tuple[Verdict, ...]] = guard,
) -> tuple[ClusterState, Decision]:
    """Decide about one cluster. Pure, synchronous and total.

    Args:
        spec: the configuration of the cluster.
        state: the state that the last step returned, or `ClusterState()` for the first step.
        observation: the present observation. Its time is the only clock.
        guards: turns the proposal into the decided size; another function than `guard` is only for comparisons.

    Returns:
        The new state and the decision. If `decision.rescale` is true, the state already has the rescale as requested:
        store the state first, then call the target; if that fails, pass the state through `state.call_failed`.
        The last entry of `state.past` is the observation with only its trusted readings: record this one.
    """
    seen = trust(spec, state, observation)
    if not seen.size_known():
        return hold(seen)
    settled = settle(seen)
    learn_result = learn(seen, settled)
    recommendations = evaluate(learn_result.views, learn_result.learned, learn_result.policy_errors)
    combined = combine(seen, settled, recommendations)
    context = guard_context(seen, settled, combined)
    return decide(seen, settled, learn_result, recommendations, combined, context, guards(context))
