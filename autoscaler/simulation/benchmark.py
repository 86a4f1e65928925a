"""The figures of the benchmark: scores of every policy, load, plant and seed, their means, and regressions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from autoscaler.core.model import ClusterSpec
from autoscaler.core.step import Decide
from autoscaler.simulation.loads import Load
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PlantSpec
from autoscaler.simulation.scoring import Score

FAST = ("steps6h", "waves6h", "ramps8h", "bursts12h")
"""Loads of the fast set: synthetic, one seed, all plants."""

DEFAULT = "adaptive"
"""The policy whose figures the gate compares with those recorded."""

LOW_VIOLATION = 0.01
"""A violation below this share of the time is low."""

TOLERANCE = 0.03
"""A figure may become worse by this share..."""

ABSOLUTE_TOLERANCE: Mapping[str, float] = {"cost": 0.0, "violation": 0.0005, "rescales_per_hour": 0.1}
"""... plus this much, since 3 % of almost nothing is nothing: 0.05 % of the time, one rescale in ten hours."""


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one run."""

    plant: str
    scenario: str
    policy: str
    seed: int
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The means of several runs of a policy: cost geometric, all else arithmetic.

    Attributes:
        plant, scenario, policy: identify the runs; an empty `scenario` means all scenarios.
        cost: cost as a ratio to the optimum; None if there is no optimum, because no size keeps the objective.
        demand: cost as a ratio to what the arrivals need at each moment.
        violation, p50, p99, worst, rescales_per_hour, stopped, under, over, j: as in `Score`.
        converged: seconds, over the runs with jumps; None: no run had a jump.
        low, of: the number of scenarios with a violation below `LOW_VIOLATION`, and of all scenarios.
    """

    plant: str
    scenario: str
    policy: str
    cost: float | None
    demand: float
    violation: float
    p50: float
    p99: float
    worst: float
    rescales_per_hour: float
    stopped: float
    under: float
    over: float
    converged: float | None
    j: float
    low: int
    of: int


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy in the benchmark: its name, the spec of its cluster, and the decider."""

    name: str
    spec: ClusterSpec
    decide: Decide


def compare(contender: Contender, plant_name: str, plant: PlantSpec, load: Load, seed: int, least: float | None) -> Row:
    """The numbers of one run.

    `plant_name` is the plant's name in tables; `least` is the cost of the optimum in worker-hours, if there is one.
    """
    done = run(contender.spec, plant, load, seed, decide=contender.decide)
    return Row(plant_name, load.name, contender.name, seed, done.score(least))


def means(rows: Iterable[Row], *, each: bool = False) -> list[Means]:
    """The means of each policy on each plant, or with `each` on each of its scenarios, in the order of the rows."""

    def key(row: Row) -> tuple[str, str, str]:
        return row.plant, row.scenario if each else "", row.policy

    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return [_mean(*names, some) for names, some in found.items()]


_AVERAGED = ("violation", "p50", "p99", "worst", "rescales_per_hour", "stopped", "under", "over", "j")
"""Figures of a score whose arithmetic mean is taken."""


def _mean(plant: str, scenario: str, policy: str, rows: Sequence[Row]) -> Means:
    scores = [row.score for row in rows]

    ratios = [ratio for score in scores if (ratio := score.to_optimum) is not None]
    jumps = [score.converged for score in scores if score.converged is not None]
    by_scenario = {
        name: [row.score.violation for row in some]
        for name, some in groupby(sorted(rows, key=lambda row: row.scenario), lambda row: row.scenario)
    }
    return Means(
        plant=plant,
        scenario=scenario,
        policy=policy,
        cost=geometric(ratios) if len(ratios) == len(scores) else None,
        demand=geometric([score.to_demand for score in scores]),
        converged=math.fsum(jumps) / len(jumps) if jumps else None,
        low=sum(math.fsum(some) / len(some) < LOW_VIOLATION for some in by_scenario.values()),
        of=len(by_scenario),
        **{name: math.fsum(getattr(score, name) for score in scores) / len(scores) for name in _AVERAGED},
    )


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


COLUMNS = ("cost", "too late", "rescales per h", "J", "p99 s", "worst s", "stopped", "under", "over", "cost / demand")
"""The columns of `cells`."""


def cells(of: Means) -> tuple[str, ...]:
    """The numbers of a table's row, formatted."""
    return (
        "-" if of.cost is None else f"{of.cost:.3f}",
        f"{of.violation:.2%}",
        f"{of.rescales_per_hour:.2f}",
        f"{of.j:.3f}",
        f"{of.p99:.0f}",
        f"{of.worst:.0f}",
        f"{of.stopped:.2%}",
        f"{of.under:.3f}",
        f"{of.over:.2f}",
        f"{of.demand:.3f}",
    )


def markdown(rows: Sequence[Row]) -> str:
    """The means as Markdown tables: one for each plant, and J over all of them if there are several."""
    found = means(rows)
    plants = list(dict.fromkeys(one.plant for one in found))
    lines = []
    for plant in plants:
        lines += [f"`{plant}`:", ""] if len(plants) > 1 else []
        lines += ["| policy | cost | too late | rescales/h | J |", "|---|---|---|---|---|"]
        for one in found:
            if one.plant == plant:
                cost = "-" if one.cost is None else f"{one.cost:.2f}"
                numbers = f"{cost} | {one.violation:.2%} | {one.rescales_per_hour:.1f} | {one.j:.2f}"
                lines.append(f"| `{one.policy}` | {numbers} |")
        lines.append("")
    if len(plants) > 1:
        lines += ["All of them:", "", "| policy | J |", "|---|---|"]
        for policy in dict.fromkeys(one.policy for one in found):
            mine = [one.j for one in found if one.policy == policy]
            lines.append(f"| `{policy}` | {math.fsum(mine) / len(mine):.2f} |")
    return "\n".join(lines).rstrip() + "\n"


def outperformed(rows: Sequence[Row], policy: str, without: Iterable[str] = ()) -> list[tuple[str, float, str, float]]:
    """The scenarios in which another policy has a lower J: (scenario, J of the policy, the best other, its J).

    The policies named in `without` do not count.
    """
    found = []
    left_out = set(without)
    by_scenario: dict[tuple[str, str], dict[str, float]] = {}
    for one in means(rows, each=True):
        by_scenario.setdefault((one.plant, one.scenario), {})[one.policy] = one.j
    for (_, scenario), each in by_scenario.items():
        others = {name: j for name, j in each.items() if name != policy and name not in left_out}
        if policy not in each or not others:
            continue
        best = min(others, key=lambda name: (others[name], name))
        if others[best] < each[policy]:
            found.append((scenario, each[policy], best, others[best]))
    return found


def rows_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    """The rows as JSON values."""
    return [asdict(row) for row in rows]


def digest(rows: Iterable[Any]) -> str:
    """A hash of all numbers, to the last digit, in any order of the rows: equal seeds give equal hashes.

    The rows are dataclasses.
    """
    texts = sorted(json.dumps(asdict(row), sort_keys=True) for row in rows)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


# What became worse


def gate_figures(rows: Sequence[Row], policy: str) -> dict[str, Any]:
    """The figures that later runs are compared with: those of a policy, with the scenarios and seeds of the means."""
    mine = [row for row in rows if row.policy == policy]
    return {
        "policy": policy,
        "scenarios": sorted({row.scenario for row in mine}),
        "seeds": sorted({row.seed for row in mine}),
        "plants": {one.plant: {name: getattr(one, name) for name in ABSOLUTE_TOLERANCE} for one in means(mine)},
    }


def regressions(before: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Figures that are worse than recorded by more than the tolerances, one line each.

    Raises:
        ValueError: the recorded figures are for other scenarios, seeds or plants, or are not figures.
    """
    now = gate_figures(rows, str(before.get("policy")))
    for name in ("scenarios", "seeds"):
        if now[name] != before.get(name):
            raise ValueError(f"{name}: recorded of {before.get(name)}, now {now[name]}: record it again")
    then, found = before.get("plants"), now["plants"]
    if not isinstance(then, Mapping) or set(then) != set(found):
        raise ValueError(f"plants: recorded of {then and sorted(then)}, now {sorted(found)}: record it again")
    lines = []
    for plant, figures in found.items():
        for name, slack in ABSOLUTE_TOLERANCE.items():
            was, number = then[plant].get(name), figures[name]
            if not isinstance(was, int | float):
                raise ValueError(  # noqa: TRY004 - the value comes from a file
                    f"plants.{plant}.{name}: is {was}, expected a number: record it again"
                )
            most = was * (1 + TOLERANCE) + slack
            if number is None or number > most:
                lines.append(f"{plant}: {name} is {number}, was {was}, at most {most:.6g} is allowed")
    return lines
