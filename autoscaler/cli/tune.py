"""`autoscaler tune`: finds the parameters that meet an objective at the least cost, as a patch of the configuration."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from autoscaler.cli import configuration, spark_options, trials
from autoscaler.cli.backtest import build_cases, parameters, prepare, print_left_out
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import json_option
from autoscaler.cli.output import OK, print_error, print_json, print_lines, table
from autoscaler.cli.tables import DEFAULT_ROWS, omitted_rows
from autoscaler.config import include
from autoscaler.config.document import Problems
from autoscaler.core.durations import format_duration
from autoscaler.core.model import ClusterSpec
from autoscaler.core.wording import count_of

if TYPE_CHECKING:
    from autoscaler.cli.backtest import TrialData
    from autoscaler.history.backtest_job import Known
    from autoscaler.history.tune_search import Objective
    from autoscaler.simulation.trial import Case

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

HELD = 1 / 3
"""The share of a cluster's days that validate what was chosen on the others; they are the last days."""

NEEDS = f"at least two whole days of history, and two weeks to be worthwhile; {trials.WHOLE_DAY}"

VIOLATION = 0.005

SEEDS = 3
"""The minimum number of seeds. All variants use the same seeds, and are compared day by day, seed by seed."""

GAIN = 0.02
"""A change must save this share of the cost, and more than twice the standard error of its savings on single days."""

OBJECTIVES = (0.5, 0.75, 1.0)
HEADROOMS = ("0.05", "0.2", "0.4")
"""What is tried without --set for policies with an `objective` and a `headroom`: shares of the configured objective,
and headrooms."""

Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Find the parameters that meet an objective at the least cost, by back-tests. Parameters are chosen on the "
        "first two thirds of each cluster's days. They are recommended only if on the last third they also meet the "
        f"objective and cost at least {GAIN:.0%} less than the configured ones and than the defaults, by more than "
        f"chance. Prints a patch of the configuration. It needs {NEEDS}. docs/simulate.md has an example."
    )
    trials.add_arguments(parser, seeds=SEEDS)
    add = parser.add_argument
    add(
        "--violation",
        type=_share,
        default=VIOLATION,
        metavar="SHARE",
        help="maximum share of the time with a record older than --slo (default: 0.5%%)",
    )
    add("--rescales", type=_number, metavar="N", help="maximum rescales per hour (default: any)")
    add("--out", type=Path, metavar="FILE", help="write the patch to this file, not to the standard output")
    json_option(parser)
    spark_options.add_arguments(parser)


def _share(text: str) -> float:
    percent = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share like 0.5% or 0.005")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 0 or more")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The result for one cluster.

    Attributes:
        cluster: its name in the history.
        trained, validated: the days on which parameters were chosen, and those on which they were validated.
        configured, chosen: the figures on the former days; `chosen` is None if nothing meets the objective.
        configured_then, chosen_then: the figures on the latter days; `chosen_then` is None if nothing new was chosen.
        recommended: whether the chosen parameters are recommended.
        why: the reason, as a sentence.
    """

    cluster: str
    trained: tuple[date, ...]
    validated: tuple[date, ...]
    configured: Row
    chosen: Row | None
    configured_then: Row | None
    chosen_then: Row | None
    recommended: bool
    why: str


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    print_error(f"tune needs {NEEDS}.")  # before Spark is loaded, as in `backtest`
    spark_options.require_pyspark("tune")
    if options.seeds < SEEDS:
        raise wrong(f"--seeds {options.seeds}: expected at least {SEEDS}: with fewer, chance looks like a saving")
    if options.out is not None and not options.out.absolute().parent.is_dir():
        raise wrong(f"--out {options.out}: {options.out.absolute().parent} is not a directory")
    given = trials.chosen(options)
    specs = {name: cluster.spec for name, cluster in given.read.clusters.items()}
    grids = {own: _grid(options, specs[own]) for own in dict.fromkeys(given.names.values())}
    tried = {
        # Only parameters are recommended, not the use of a profile.
        name: [variant for variant in found if variant.policy == trials.CONFIGURED]
        for name, found in trials.variants(options, given, grids.__getitem__).items()
    }
    from autoscaler.history.tune_search import Objective

    objective = Objective(options.violation, options.rescales)
    with (
        spark_options.open_session(options, "tune", reads=options.dataset) as spark,
        prepare(options, spark, given) as ready,
    ):
        cases, notes = build_cases(options, given, ready, tried, ())
        with_default = {
            name for name, own in given.names.items() if trials.defaults(specs[own].policies, grids[own][-1])
        }
        found, short = _tuned(options, ready, cases, with_default, objective)
        left_out = ready.known
    text = patch(options, given.names, given.slo, found, objective)
    if options.out is not None and text is not None:
        options.out.write_text(text)
    if options.json:
        print_json({"clusters": [_to_json(one) for one in found], "patch": text or "", "notes": [*notes, *short]})
        return OK
    _show(found, objective)
    print_lines("", *notes, *short)
    print_left_out(left_out)
    if text is None:
        print_lines("", "Nothing is recommended: there is no patch.")
    elif options.out is None:
        print_lines("", text.rstrip())
    else:
        print_lines("", f"The patch is in {options.out}: merge it into {options.config}, key by key.")
    return OK


def _grid(options: argparse.Namespace, spec: ClusterSpec) -> list[dict[str, str]]:
    """The combinations to try: the configured one, the defaults if they differ from it, and all others."""
    configured, *others = trials.combinations(options.set or _settings(options, spec))
    default = trials.defaults(spec.policies, others[0])
    return [configured, *([default] if default else []), *others]


def _settings(options: argparse.Namespace, spec: ClusterSpec) -> list[trials.Setting]:
    settings: list[trials.Setting] = []
    for named in spec.policies:
        objective, headroom = (getattr(named.policy, name, None) for name in ("objective", "headroom"))
        if isinstance(objective, timedelta) and isinstance(headroom, float):
            seconds = [max(1, round(share * objective.total_seconds())) for share in OBJECTIVES]
            spans = tuple(format_duration(timedelta(seconds=each)) for each in seconds)
            settings += [(f"{named.name}.objective", spans), (f"{named.name}.headroom", HEADROOMS)]
    if not settings:
        names = ", ".join(named.name for named in spec.policies)
        raise wrong(
            f"{options.config}: cluster {spec.name} has no policy with an objective and a headroom: give the values "
            f"to try, like --set {spec.policies[0].name}.KEY=V1,V2; its policies are {names}"
        )
    return settings


# Choosing and validating


def split(known: Known) -> tuple[Known, Known]:
    """The days on which parameters are chosen, and those on which they are validated."""
    held = max(1, round(len(known.days) * HELD))
    return replace(known, days=known.days[:-held]), replace(known, days=known.days[-held:])


def _tuned(
    options: argparse.Namespace,
    ready: TrialData,
    cases: Mapping[str, Case],
    with_default: Collection[str],
    objective: Objective,
) -> tuple[list[Tuned], list[str]]:
    from autoscaler.history.backtest_job import results
    from autoscaler.history.progress import show_progress
    from autoscaler.history.tune_search import best, means, savings

    halves = {one.cluster: split(one) for one in ready.known if one.cluster in cases}
    short = sorted(name for name, (train, _) in halves.items() if not train.days)
    whole = {name: both for name, both in halves.items() if name not in short}
    if not whole:
        raise wrong(
            f"{options.dataset}: has one whole day of {', '.join(short[:DEFAULT_ROWS])}: two are needed, one to "
            "choose on and one to validate on"
        )
    train = replace(ready, known=tuple(train for train, _ in whole.values()))
    tries = train.trials(cases, options.seeds)
    spark_options.print_plans(options, {"the trials": tries})
    with show_progress(
        ready.spark, f"choosing among {count_of(max(len(case.variants) for case in cases.values()), 'variant')}"
    ):
        rows = [row.asDict(recursive=True) for row in best(means(results(tries)), objective).collect()]
    chosen = {row["cluster"]: row for row in rows}
    for name, row in chosen.items():
        row["default"] = row.pop("second") if name in with_default else None
    validated = {
        name: replace(cases[name], variants=tuple(cases[name].variants[number] for number in _contenders(row)))
        for name, row in chosen.items()
    }
    held = replace(ready, known=tuple(after for _, after in whole.values()))
    then: dict[str, dict[int, Row]] = {name: {} for name in chosen}
    with show_progress(ready.spark, f"validating on {count_of(sum(len(one.days) for one in held.known), 'day')}"):
        kept = held.trials(validated, options.seeds).persist()
        for row in means(results(kept)).join(savings(kept), ["cluster", "variant"]).collect():
            name = row["cluster"]
            then[name][_contenders(chosen[name])[row["variant"]]] = row.asDict()
        kept.unpersist()
    found = [
        recommendation_for(name, whole[name][0].days, whole[name][1].days, chosen[name], then[name], objective)
        for name in sorted(chosen)
    ]
    return found, [
        f"{name} has one whole day only: two are needed, one to choose on and one to validate on."
        for name in short[:DEFAULT_ROWS]
    ]


def _contenders(row: Row) -> list[int]:
    """The variants to validate: the configured one, the chosen one, and the defaults."""
    return list(dict.fromkeys(row[name]["variant"] for name in ("configured", "chosen", "default") if row[name]))


def recommendation_for(
    cluster: str,
    trained: tuple[date, ...],
    validated: tuple[date, ...],
    row: Row,
    then: Mapping[int, Row],
    objective: Objective,
) -> Tuned:
    """Decide whether to recommend the chosen parameters, the defaults or neither.

    `row` is a row of `tune_search.best` with a key `default` (None: the defaults are configured). `then` has the
    figures of these variants on the validation days, with the saving and its standard error (`tune_search.savings`).
    """
    before = then[row["configured"]["variant"]]
    chosen, default = row["chosen"], row["default"]
    best, why = chosen, ""
    if chosen is None:
        near = row["nearest"]
        why = f"nothing that was tried meets the objective: {_figures(near)} at best, with {_with(near)}"
    elif chosen["variant"] == row["configured"]["variant"]:
        why = (
            f"the configured parameters {'' if default else '(the defaults) '}are the cheapest that meet the objective"
        )
        if not objective.is_met(before):
            why += f", but on the validation days they miss it ({_figures(before)})"
    else:
        why = _refusal(then[chosen["variant"]], before, objective)
        if default is not None and chosen["variant"] != default["variant"]:
            ours, theirs = then[chosen["variant"]], then[default["variant"]]
            least = (1 - GAIN) * theirs["replica_hours"]
            if objective.is_met(theirs) and (why or ours["replica_hours"] > least):
                # If the two differ by less, take the defaults: they were not fitted to the days of the choice.
                best, why = default, _refusal(theirs, before, objective) or ""
    after = None if best is None or best["variant"] == row["configured"]["variant"] else then[best["variant"]]
    return Tuned(
        cluster=cluster,
        trained=trained,
        validated=validated,
        configured=row["configured"],
        chosen=best,
        configured_then=before,
        chosen_then=after,
        recommended=not why,
        why=why or _gain(after or before, before, objective),
    )


def _refusal(after: Row, before: Row, objective: Objective) -> str:
    """Why the figures on the validation days rule parameters out; empty if they do not."""
    if not objective.is_met(after):
        return f"not recommended: on the validation days it misses the objective ({_figures(after)})"
    if not objective.is_met(before):
        return ""
    if after["saved"] < GAIN:
        return (
            f"not recommended: on the validation days it costs {_cost(after)} than the configured parameters, "
            f"{_violation(after, before)}; expected at least {GAIN:.0%} less"
        )
    if after["saved"] <= 2 * after["noise"]:
        return (
            f"not recommended: on the validation days it costs {_cost(after)} than the configured parameters, which "
            f"may be chance (standard error {after['noise']:.1%})"
        )
    return ""


def _gain(after: Row, before: Row, objective: Objective) -> str:
    broken = (
        "" if objective.is_met(before) else f"; the configured parameters miss the objective there ({_figures(before)})"
    )
    return (
        f"on the validation days it costs {_cost(after)} (standard error {after['noise']:.1%}) and meets the objective "
        f"({_figures(after)}), {_violation(after, before)}{broken}"
    )


def _cost(after: Row) -> str:
    saved = after["saved"]
    return f"{saved:.1%} less" if saved >= 0 else f"{-saved:.1%} more"


def _violation(after: Row, before: Row) -> str:
    added = after["violation"] - before["violation"]
    return f"with {abs(added):.3%} of the time {'more' if added >= 0 else 'less'} too late"


def _figures(row: Row) -> str:
    return f"too late for {row['violation']:.2%} of the time, {row['rescales_per_hour']:.1f} rescales/h"


def _with(row: Row) -> str:
    text = parameters(row)
    return "the configured parameters" if text == "-" else text


# Output


def _show(found: Sequence[Tuned], objective: Objective) -> None:
    limit = "" if objective.rescales is None else f", at most {objective.rescales:g} rescales an hour"
    print_lines(f"Objective: too late for at most {objective.violation:.3g} of the time{limit}.", "")
    rows = []
    shown = found[:DEFAULT_ROWS]
    for one in shown:
        rows.append((one.cluster, "configured", "-", *_both_times(one.configured, one.configured_then)))
        if one.chosen is not None and one.chosen_then is not None:
            name = "recommended" if one.recommended else "refused"
            rows.append((one.cluster, name, parameters(one.chosen), *_both_times(one.chosen, one.chosen_then)))
    head = ("days", "replica-hours", "violation", "rescales/h")
    table(("cluster", "", "parameters", *head, *(f"then {name}" for name in head)), rows)
    print_lines(*omitted_rows(shown, found, "clusters"), "", *(f"{one.cluster}: {one.why}." for one in shown))


def _both_times(now: Row, then: Row | None) -> tuple[str, ...]:
    return tuple(cell for row in (now, then) for cell in _cells(row))


def _cells(row: Row | None) -> tuple[str, ...]:
    if row is None:
        return ("-",) * 4
    return (
        f"{row['days']:g}",
        f"{row['replica_hours']:.1f}",
        f"{row['violation']:.3%}",
        f"{row['rescales_per_hour']:.2f}",
    )


def _to_json(found: Tuned) -> dict[str, Any]:
    return {
        "cluster": found.cluster,
        "trained": [found.trained[0].isoformat(), found.trained[-1].isoformat()],
        "validated": [found.validated[0].isoformat(), found.validated[-1].isoformat()],
        "configured": found.configured,
        "chosen": found.chosen,
        "configured_then": found.configured_then,
        "chosen_then": found.chosen_then,
        "recommended": found.recommended,
        "why": found.why,
    }


# The patch


def patch(
    options: argparse.Namespace,
    names: Mapping[str, str],
    slo: Mapping[str, float],
    found: Sequence[Tuned],
    objective: Objective,
) -> str | None:
    """The recommended parameters as a part of a configuration, with comments. None: nothing is recommended."""
    good = [one for one in found if one.recommended and one.chosen is not None]
    if not good:
        return None
    limit = "" if objective.rescales is None else f" and at most {objective.rescales:g} rescales an hour"
    lines = [
        f"# autoscaler tune {options.dataset}: merge this into {options.config}, key by key.",
        f"# Objective: at most {100 * objective.violation:.3g} % of the time with a record too old{limit}.",
        "clusters:",
    ]
    for one in good:
        assert one.chosen is not None  # noqa: S101 - see above
        cluster = names[one.cluster]
        settings = {cluster: _nested(one.chosen["parameters"], options, cluster)}
        head, *body = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).splitlines()
        lines += [
            f"  {head}",
            f"    # Too old is above {slo[one.cluster]:g} s. Chosen on {_days(one.trained)},",
            f"    # validated on {_days(one.validated)}:",
            f"    # {one.why}.",
            *(f"  {line}" for line in body),
        ]
    return "".join(f"{line}\n" for line in lines)


def _days(days: Sequence[date]) -> str:
    return f"{count_of(len(days), 'day')} from {days[0]} to {days[-1]}"


def _nested(settings: Mapping[str, str], options: argparse.Namespace, name: str) -> dict[str, Any]:
    policies = configuration.load(options.config).clusters[name].spec.policies
    root = include.read(options.config, Problems(str(options.config)))
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *above, last = trials.setting_path(root, key, name, policies)[2:]
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[last] = yaml.safe_load(value)
    return tree
