"""How policies perform on loads and plants that nobody tuned them for: scores, their spread, and a policy's losses.

The first hour, in which a policy knows nothing about the job yet, is scored separately.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Observation
from autoscaler.core.step import Decide
from autoscaler.simulation.benchmark import Contender, geometric
from autoscaler.simulation.families import FAMILIES, FOLDS, PLANT_FAMILIES, Sample, split
from autoscaler.simulation.loads import Load
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import SHARES, STEP
from autoscaler.simulation.scoring import Score

FIRST_S = 3600.0
"""Seconds of the first hour..."""

FIRST = round(FIRST_S / STEP)
"""... and its steps."""

WORST = 0.1
"""The share of the runs in the worst tenth, which has at least one run."""

MARGIN = 0.05
"""If another rule is better by no more than this, it is no loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The scores of a policy on a sample.

    Attributes:
        policy: its name.
        family, number, kept, plant_family: as in the sample.
        first: the score of the first hour.
        rest: the score of the time after the first hour.
    """

    policy: str
    family: str
    number: int
    kept: bool
    plant_family: str
    first: Score
    rest: Score


def first_hour(load: Load) -> Load:
    """The part of a load that is scored as `Judged.first`."""
    return replace(load, rates=load.rates[:FIRST])


def after_first_hour(load: Load) -> Load:
    """The part of a load that is scored as `Judged.rest`."""
    return replace(load, rates=load.rates[FIRST:])


def judge(contender: Contender, sample: Sample, least: tuple[float | None, float | None]) -> Judged:
    """Run a policy on a sample.

    `least`: the cost of the optimum in worker-hours for the first hour and for the rest; None: there is no optimum.
    """
    decide = showing_cpu(contender.decide) if sample.cpu else contender.decide
    done = run(contender.spec, sample.plant, sample.load, sample.seed, decide=decide, faults=sample.faults)
    return Judged(
        policy=contender.name,
        family=sample.family,
        number=sample.number,
        kept=sample.kept,
        plant_family=sample.plant_family,
        first=done.score(least[0], end=FIRST),
        rest=done.score(least[1], begin=FIRST),
    )


def showing_cpu(decide: Decide) -> Decide:
    """The same decider with a source that has only the CPU: all metrics that are shares show the CPU."""

    def decided(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        metrics, missing = dict(observation.metrics), dict(observation.missing)
        for name in SHARES:
            metrics.pop(name, None)
            missing.pop(name, None)
            if "cpu" in observation.metrics:
                metrics[name] = observation.metrics["cpu"]
            else:
                missing[name] = observation.missing["cpu"]
        return decide(spec, state, replace(observation, metrics=metrics, missing=missing))

    return decided


# Figures


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean of some figures, the mean of their worst tenth, and the worst of them."""

    mean: float
    tenth: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a policy on several samples.

    Attributes:
        policy: its name.
        runs: their number.
        j, cost, violation, rescales_per_hour: without the first hour; each figure has a worst tenth of its own. The
            cost is a ratio to the optimum, and its means are geometric.
        first_j, first_cost, first_violation: means of the first hour.
    """

    policy: str
    runs: int
    j: Spread
    cost: Spread
    violation: Spread
    rescales_per_hour: Spread
    first_j: float
    first_cost: float
    first_violation: float


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def spread(values: Iterable[float], average: Callable[[Sequence[float]], float] = mean) -> Spread:
    """The spread of values; a greater value is worse."""
    ordered = sorted(values, reverse=True)
    return Spread(average(ordered), average(ordered[: math.ceil(len(ordered) * WORST)]), ordered[0])


def cost(score: Score) -> float:
    """Cost as a ratio to the optimum or, if there is no optimum, to what the arrivals need at each moment."""
    return score.to_demand if score.to_optimum is None else score.to_optimum


def summaries(rows: Iterable[Judged]) -> list[Summary]:
    """The figures of each policy, in the order of the rows."""
    found: dict[str, list[Judged]] = {}
    for row in rows:
        found.setdefault(row.policy, []).append(row)
    return [_summary(policy, some) for policy, some in found.items()]


def _summary(policy: str, rows: Sequence[Judged]) -> Summary:
    return Summary(
        policy=policy,
        runs=len(rows),
        j=spread(row.rest.j for row in rows),
        cost=spread((cost(row.rest) for row in rows), geometric),
        violation=spread(row.rest.violation for row in rows),
        rescales_per_hour=spread(row.rest.rescales_per_hour for row in rows),
        first_j=mean([row.first.j for row in rows]),
        first_cost=geometric([cost(row.first) for row in rows]),
        first_violation=mean([row.first.violation for row in rows]),
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """A comparison of a policy with the best other policy on one sample, or on several: then the J are means.

    Attributes:
        sample: the family of the load, the kind of the plant, and the number if it is one sample.
        j: the J of the policy.
        other: the other policy with the lowest J.
        other_j: the J of that other policy.
    """

    sample: tuple[str, ...]
    j: float
    other: str
    other_j: float

    @property
    def by(self) -> float:
        """By how much the other policy is better; below 0 if it is worse."""
        return self.j - self.other_j


def compared(
    rows: Iterable[Judged], policy: str, key: Callable[[Judged], tuple[str, ...]]
) -> dict[tuple[str, ...], Loss]:
    """A policy and the best other one, on all samples that have the same key, by that key."""
    found: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(key(row), {}).setdefault(row.policy, []).append(row.rest.j)
    losses = {}
    for names, each in found.items():
        j = {name: mean(values) for name, values in each.items()}
        other = min((name for name in j if name != policy), key=lambda name: (j[name], name))
        losses[names] = Loss(names, j[policy], other, j[other])
    return losses


def losses(rows: Iterable[Judged], policy: str) -> list[Loss]:
    """The samples on which another policy is better by more than `MARGIN`, the greatest loss first."""
    found = compared(rows, policy, lambda row: (row.family, row.plant_family, str(row.number)))
    return sorted([one for one in found.values() if one.by > MARGIN], key=lambda one: (-one.by, one.sample))


# Tables


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its title, formatted."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def markdown(table: Table) -> str:
    """A table in Markdown."""
    lines = [table.head, ("---",) * len(table.head), *table.rows]
    return "\n".join([f"{table.title}:", "", *(f"| {' | '.join(cells)} |" for cells in lines)]) + "\n"


def overview(rows: Sequence[Judged]) -> Table:
    """The figures of each policy."""
    return Table(
        "Mean, worst tenth and worst of all loads without their first hour; means of the first hour",
        ("policy", "J", "cost", "too late %", "rescales/h", "first hour: J", "cost", "too late %"),
        tuple([(one.policy, *_cells(one)) for one in summaries(rows)]),
    )


def _cells(of: Summary) -> tuple[str, ...]:
    return (
        _three(of.j, "{:.2f}"),
        _three(of.cost, "{:.2f}"),
        _three(of.violation, "{:.2f}", 100),
        _three(of.rescales_per_hour, "{:.1f}"),
        f"{of.first_j:.2f}",
        f"{of.first_cost:.2f}",
        f"{100 * of.first_violation:.2f}",
    )


def _three(of: Spread, form: str, times: float = 1.0) -> str:
    return " ".join(form.format(times * value) for value in (of.mean, of.tenth, of.worst))


def by_place(rows: Sequence[Judged], policy: str) -> Table:
    """J of a policy and of the best other one for each family on each kind of plant."""
    families = dict.fromkeys([*FAMILIES, *(row.family for row in rows)])
    known = {row.family for row in rows}
    found = {
        **compared(rows, policy, lambda row: (row.family, row.plant_family)),
        **compared(rows, policy, lambda row: (row.family, ALL)),
        **compared(rows, policy, lambda row: (ALL, row.plant_family)),
        **compared(rows, policy, lambda _: (ALL, ALL)),
    }

    def cell(family: str, plant: str) -> str:
        one = found.get((family, plant))
        return "" if one is None else f"{one.j:.2f} ({one.other_j:.2f})"

    plants = (*PLANT_FAMILIES, ALL)
    return Table(
        f"J of {policy}, in brackets J of the best other rule without foresight",
        ("family", *plants),
        tuple(
            [
                (family, *(cell(family, plant) for plant in plants))
                for family in (*(name for name in families if name in known), ALL)
            ]
        ),
    )


ALL = "all"
"""The row, or column, of all families or plants."""


def cross_validation(rows: Sequence[Judged], policy: str) -> Table:
    """The figures of a policy on the families to develop on and on the held-out ones, for each split."""
    lines = []
    for fold in range(1, len(FOLDS) + 1):
        develop, kept = split(fold)
        here = [
            [row for row in rows if row.policy == policy and row.kept == is_kept and row.family in families]
            for families, is_kept in ((develop, False), (kept, True))
        ]
        ours = [_summary(policy, some) for some in here]
        lines.append(
            (
                f"{fold}: {', '.join(kept)}",
                *(f"{one.j.mean:.2f}" for one in ours),
                *(f"{100 * one.violation.mean:.2f}" for one in ours),
            )
        )
    head = ("split, kept families", "J developed on", "J kept", "too late % developed on", "too late % kept")
    return Table(f"{policy}, cross-validated", head, tuple(lines))


def ablation(rows: Sequence[Judged], policy: str, without: Mapping[str, object]) -> Table:
    """Compare a policy with variants of it that have one rule off; `without` has the names of the variants."""
    own, *others = sorted(
        summaries([row for row in rows if row.policy == policy or row.policy in without]),
        key=lambda one: one.policy != policy,
    )
    lines = [(own.policy, "", *_cells(own)[:4])]
    lines += [(one.policy, _change(rows, policy, one.policy), *_cells(one)[:4]) for one in others]
    return Table(
        f"{policy} with one rule off, change of J and its standard error: a rule is of use if J rises without it",
        ("off", "change of J", "J", "cost", "too late %", "rescales/h"),
        tuple(lines),
    )


def _change(rows: Sequence[Judged], policy: str, other: str) -> str:
    """The mean difference of J on the same samples, and its standard error if there are several."""
    own, theirs = (
        {(row.family, row.number, row.kept): row.rest.j for row in rows if row.policy == name}
        for name in (policy, other)
    )
    changes = [j - own[sample] for sample, j in theirs.items()]
    error = f" +- {statistics.stdev(changes) / math.sqrt(len(changes)):.3f}" if len(changes) > 1 else ""
    return f"{mean(changes):+.3f}{error}"
