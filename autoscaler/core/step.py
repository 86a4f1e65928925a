"""One step of the decision machine. The daemon, replay, simulate and backtest all drive this one function.

What one stage hands to the next is not frozen: it never leaves the step, and is made and read in half the time.
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
"""What decides: `step`, or something that it is compared with."""


def step(
    spec: ClusterSpec,
    state: ClusterState,
    observation: Observation,
    guards: Callable[[GuardContext], tuple[Verdict, ...]] = guard,
) -> tuple[ClusterState, Decision]:
    """Decide about one cluster. Pure, synchronous and total.

    Args:
        spec: what is fixed.
        state: what the last step returned, or `ClusterState()` at first.
        observation: what is seen now. Its time is the only clock.
        guards: what stands between the proposal and the size; anything but the guards is for comparisons alone.

    Returns:
        The new state and the decision. When `decision.rescale` is true the state holds the rescale as requested:
        keep the state first, then call the target; if that fails, pass the state through `state.call_failed`.
        The last entry of `state.past` is the observation as it was trusted: the one to record.
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
