"""How KEDA computes the lag that the HPA receives; the policy `keda-lag` is compared with it."""

from __future__ import annotations

from autoscaler_policies.keda.rules import next_factor


def exported_lag(
    lag: float,
    threshold: float,
    partitions: int,
    *,
    with_lag: int | None = None,
    allow_idle: bool = False,
    only_with_lag: bool = False,
    even: bool = False,
) -> float:
    """The lag that KEDA exports to the HPA, limited by the partitions (kafka_scaler.go, getTotalLag).

    Args:
        lag: sum over all partitions.
        threshold: lag per replica (`lagThreshold`).
        partitions: number of partitions.
        with_lag: number of partitions with lag.
        allow_idle: whether there may be more consumers than partitions (`allowIdleConsumers`).
        only_with_lag: whether only partitions with lag count (`limitToPartitionsWithLag`).
        even: whether the number of consumers must divide the partitions evenly (`ensureEvenDistributionOfPartitions`).
    """
    if allow_idle and not only_with_lag and not even:
        return lag
    bound = partitions
    if even:
        lag = next_factor(lag, partitions, threshold) * threshold
    if only_with_lag:
        bound = partitions if with_lag is None else with_lag
    return bound * threshold if lag // threshold > bound else lag
