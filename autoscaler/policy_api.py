"""What the author of a policy imports: the model that policies see, and `ParameterError` for a wrong parameter.

A policy is a frozen dataclass with the method of `Policy`. Optional hooks are declared by `Learner` (it learns),
`Bounding` (it moves the bounds), `Stabilizing` (it needs no stabilization window), `Comparing` (it compares metrics
with levels), `LookingBack` (reads the past), `Requiring` (it cannot do without some metrics), `Ranging` (it knows what
they can be), `Serving` (it keeps up with arrivals) and `Estimating` (it learns what sizes can process). A policy has a
hook when it has the attribute; nothing is registered.
"""

from autoscaler.core import dataflow, expression
from autoscaler.core.capacity import effective_slots, restart_time, source_partitions
from autoscaler.core.capacity import rate as saturated_rate
from autoscaler.core.model import (
    AMOUNT,
    MOST_LEARNED,
    PHASES,
    SHARE,
    ZERO,
    Allowance,
    Bounding,
    Cause,
    ClusterSpec,
    Comparing,
    Direction,
    EngineStatus,
    Estimating,
    JobState,
    Learned,
    Learner,
    Limits,
    LookingBack,
    Observation,
    Phase,
    Policy,
    Range,
    Ranging,
    Reading,
    Reason,
    Recommendation,
    Requiring,
    Rescale,
    Select,
    Serving,
    Stabilizing,
    View,
)
from autoscaler.core.parameters import ParameterError

__all__ = [
    "AMOUNT",
    "MOST_LEARNED",
    "PHASES",
    "SHARE",
    "ZERO",
    "Allowance",
    "Bounding",
    "Cause",
    "ClusterSpec",
    "Comparing",
    "Direction",
    "EngineStatus",
    "Estimating",
    "JobState",
    "Learned",
    "Learner",
    "Limits",
    "LookingBack",
    "Observation",
    "ParameterError",
    "Phase",
    "Policy",
    "Range",
    "Ranging",
    "Reading",
    "Reason",
    "Recommendation",
    "Requiring",
    "Rescale",
    "Select",
    "Serving",
    "Stabilizing",
    "View",
    "dataflow",
    "effective_slots",
    "expression",
    "restart_time",
    "saturated_rate",
    "source_partitions",
]
