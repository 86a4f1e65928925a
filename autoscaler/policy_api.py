"""What the author of a policy imports: the model that policies see, and how they say what is wrong with a parameter."""

from autoscaler.core import dataflow, expression
from autoscaler.core.capacity import effective_slots, restart_time, source_partitions
from autoscaler.core.capacity import rate as saturated_rate
from autoscaler.core.model import (
    MOST_LEARNED,
    PHASES,
    ZERO,
    Allowance,
    Cause,
    ClusterSpec,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Limits,
    Observation,
    Phase,
    Policy,
    Reading,
    Reason,
    Recommendation,
    Rescale,
    Select,
    View,
)
from autoscaler.core.parameters import ParameterError

__all__ = [
    "MOST_LEARNED",
    "PHASES",
    "ZERO",
    "Allowance",
    "Cause",
    "ClusterSpec",
    "Direction",
    "EngineStatus",
    "JobState",
    "Learned",
    "Limits",
    "Observation",
    "ParameterError",
    "Phase",
    "Policy",
    "Reading",
    "Reason",
    "Recommendation",
    "Rescale",
    "Select",
    "View",
    "dataflow",
    "effective_slots",
    "expression",
    "restart_time",
    "saturated_rate",
    "source_partitions",
]
