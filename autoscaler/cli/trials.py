"""What `backtest` and `tune` try: the clusters of a configuration, the variants, and the simulated clusters."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler import plugins
from autoscaler.cli import configuration, plants
from autoscaler.cli import options as arguments
from autoscaler.cli.benchmark_run import cluster as baseline_spec
from autoscaler.cli.configuration import wrong
from autoscaler.cli.simulate_setup import PEAK_SHARE, plant_metrics
from autoscaler.config import document, include
from autoscaler.config.document import Invalid, Node, Problems
from autoscaler.config.model import Cluster, Config
from autoscaler.core.durations import format_duration
from autoscaler.core.model import ClusterSpec, NamedPolicy
from autoscaler.core.wording import format_number
from autoscaler.core.workload_profile import Profile
from autoscaler.plugins import Kind
from autoscaler.ports import ConfigurationError
from autoscaler.simulation.baselines import BASELINES, Baseline
from autoscaler.simulation.plant import STEP, work
from autoscaler.simulation.scoring import needed
from autoscaler.simulation.trial import STATIC_HEADROOM, Case, Variant, plant_from_profile
from autoscaler.trace import profile_file

if TYPE_CHECKING:
    from autoscaler.history.backtest_job import Known

CONFIGURED = "configured"
"""The name of the configured policies in tables."""

PROFILE = "profile"
"""The name of the metric that carries a profile in a trial, and of a policy's parameter for such a metric."""

Setting = tuple[str, tuple[str, ...]]
"""A key, like `main.objective`, and the values to try."""


WHOLE_DAY = "a day (UTC) counts if it has no gap of more than 15 minutes"


def add_arguments(parser: argparse.ArgumentParser, seeds: int) -> None:
    """Add the options that `backtest` and `tune` share; `seeds` is the default number of seeds."""
    add = parser.add_argument
    add("dataset", metavar="DATASET", help="the history: a dataset of `autoscaler history import`")
    add("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    add("--cluster", action="append", metavar="NAME", help="only this cluster; may be repeated (default: all)")
    add("--from", dest="since", type=arguments.day, metavar="DAY", help="the first day (UTC), like 2026-01-31")
    add("--to", dest="until", type=arguments.day, metavar="DAY", help="only days before this one")
    add(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="KEY=V1,V2",
        help="try these values of a setting: of a policy, like main.objective=30s,60s, or of the cluster, like "
        "down.window=0s,5m; if repeated, every combination is tried",
    )
    add("--seeds", type=arguments.count, default=seeds, metavar="N", help=f"use the seeds 1 to N (default: {seeds})")
    add(
        "--slo",
        type=arguments.span,
        metavar="TIME",
        help="no record should be older than this (default: the policy's objective)",
    )
    add(
        "--profiles",
        type=Path,
        metavar="DIR",
        help="profiles of `autoscaler profile`: the simulated clusters get their properties. Policies that can use a "
        "profile are also tried with it, on the days after those that it was computed from",
    )
    add(
        "--plant",
        default="k8s",
        metavar="NAME|FILE",
        help="the simulated cluster if there is no profile, as for `simulate` (default: k8s)",
    )
    add(
        "--rate-per-worker",
        "--one",
        action=arguments.Renamed,
        type=arguments.above,
        metavar="RATE",
        help="records/s that one worker processes, if there is no profile; --one is the old name",
    )
    arguments.add_metric(parser)


def _setting(text: str) -> Setting:
    key, equals, values = text.partition("=")
    if not equals or not all(key.split(".")) or not values.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not like main.objective=30s,60s")
    return key, tuple(_split(values))


def _split(text: str) -> Iterator[str]:
    """Split at commas, except within lists, mappings and quotes."""
    depth = 0
    quote = ""
    begin = 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
            if letter == "," and not depth:
                yield text[begin:place].strip()
                begin = place + 1
    yield text[begin:].strip()


# The clusters


@dataclass(frozen=True, slots=True)
class Chosen:
    """The clusters to try.

    Attributes:
        read: the configuration.
        names: cluster in the history -> its name in the configuration.
        profiles: cluster -> its profile, if it has one.
        slo: cluster -> seconds that a record may wait.
    """

    read: Config
    names: Mapping[str, str]
    profiles: Mapping[str, Profile]
    slo: Mapping[str, float]

    @property
    def first(self) -> dict[str, date]:
        """The first day on which a cluster is tried: the day after its profile ends."""
        return {
            name: (profile.end.astimezone(UTC) + timedelta(days=1)).date() for name, profile in self.profiles.items()
        }


def chosen(options: argparse.Namespace) -> Chosen:
    """Read the configuration and the profiles of the clusters. Raises ConfigurationError."""
    if options.since is not None and options.until is not None and options.since >= options.until:
        raise wrong("--to must be after --from")
    read = configuration.load(options.config)
    wanted = list(dict.fromkeys(options.cluster or read.clusters))
    if len(read.clusters) == 1 and len(wanted) == 1:
        # The only cluster of the configuration may have another name in the history.
        names = {wanted[0]: next(iter(read.clusters))}
    else:
        names = {name: configuration.known(name, read.clusters, f"cluster of {read.path}") for name in wanted}
    known = {} if options.profiles is None else _profiles(options.profiles, names)
    plant = plants.plant(options.plant).plant
    slo = {
        name: options.slo.total_seconds() if options.slo is not None else _objective(read.clusters[ours], plant.slo)
        for name, ours in names.items()
    }
    return Chosen(read, names, known, slo)


def _profiles(directory: Path, names: Mapping[str, str]) -> dict[str, Profile]:
    if not directory.is_dir():
        raise wrong(f"--profiles {directory}: is not a directory; `autoscaler profile` makes one")
    found: dict[str, Profile] = {}
    problems = []
    for name in names:
        path = directory / profile_file.file_name(name)
        try:
            found[name] = profile_file.load(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise wrong(*problems)
    if not found:
        raise wrong(f"--profiles {directory}: has none of {', '.join(sorted(names))}; `autoscaler profile` makes them")
    return found


def _objective(cluster: Cluster, default: float) -> float:
    """The least objective of the cluster's policies, in seconds."""
    found = [getattr(named.policy, "objective", None) for named in cluster.spec.policies]
    return min([one.total_seconds() for one in found if isinstance(one, timedelta)], default=default)


# Variants


def combinations(settings: Sequence[Setting]) -> list[dict[str, str]]:
    """Every combination of values; the first one changes nothing."""
    if not settings:
        return [{}]
    keys = [key for key, _ in settings]
    every = itertools.product(*(values for _, values in settings))
    return [{}, *(dict(zip(keys, values, strict=True)) for values in every)]


def defaults(policies: Sequence[NamedPolicy], keys: Iterable[str]) -> dict[str, str]:
    """The defaults of those parameters in `keys` that are configured otherwise, as settings; never of `objective`."""
    found = {}
    for named in policies:
        for field in dataclasses.fields(named.policy):  # type: ignore[arg-type]
            key = f"{named.name}.{field.name}"
            names = {
                key,
                *(
                    f"{named.name}.{old}"
                    for old, new in plugins.aliases(type(named.policy)).items()
                    if new == field.name
                ),
            }
            if field.name != "objective" and names & set(keys) and getattr(named.policy, field.name) != field.default:
                default: object = field.default
                found[key] = format_duration(default) if isinstance(default, timedelta) else json.dumps(default)
    return found


def path_of(key: str, name: str, policies: Sequence[str]) -> tuple[str, ...]:
    """The path of a key like `main.objective` in a configuration: a key of that policy, or else of the cluster."""
    for policy in sorted(policies, key=len, reverse=True):
        if key.startswith(f"{policy}."):
            return ("clusters", name, "policies", policy, *key.removeprefix(f"{policy}.").split("."))
    return ("clusters", name, *key.split("."))


def setting_path(root: Node, key: str, name: str, policies: Sequence[NamedPolicy]) -> tuple[str, ...]:
    """Like `path_of`, but a policy's parameter gets the name that the file uses for it, or else its present name."""
    path = path_of(key, name, [named.name for named in policies])
    match path:
        case (_, _, "policies", policy, parameter, *rest):
            classes = [type(named.policy) for named in policies if named.name == policy]
        case _:
            return path
    aliases = {old: new for cls in classes for old, new in plugins.aliases(cls).items()}
    present = aliases.get(parameter, parameter)
    there = _keys(root, path[:4])
    used = next((old for old, new in aliases.items() if new == present and old in there), present)
    return (*path[:4], used, *rest)


def _keys(node: Node, path: Sequence[str]) -> Iterable[str]:
    for key in path:
        if not isinstance(node, document.Mapping) or key not in node.entries:
            return ()
        node = node.entries[key].node
    return node.entries if isinstance(node, document.Mapping) else ()


def apply_settings(options: argparse.Namespace, read: Config, settings: Mapping[str, Mapping[str, str]]) -> Config:
    """The configuration with changed settings (cluster -> key -> value, as given). Raises ConfigurationError."""
    root: Node = include.read(options.config, Problems(str(options.config)))
    for name, changes in settings.items():
        policies = read.clusters[name].spec.policies
        for key, text in changes.items():
            problems = Problems(f"--set {key}={text}")
            try:
                root = document.put(root, setting_path(root, key, name, policies), document.parse(text, problems))
            except Invalid:
                raise problems.error() from None
            except KeyError as error:
                raise wrong(f"--set {key}={text}: {error.args[0]} of {options.config} has no keys in it") from error
    try:
        return configuration.load(options.config, root)
    except ConfigurationError as error:
        given = ", ".join(dict.fromkeys(f"{key}={text}" for each in settings.values() for key, text in each.items()))
        raise wrong(*(f"--set {given}: {problem}" for problem in error.problems)) from error


def variants(
    options: argparse.Namespace, given: Chosen, grid: Callable[[str], Sequence[Mapping[str, str]]]
) -> dict[str, list[Variant]]:
    """The variants of the configured policies: cluster -> one for each combination of settings.

    `grid` returns the combinations of a cluster of the configuration; the first one changes nothing.
    """
    ours = dict.fromkeys(given.names.values())
    all_of_them = {name: grid(name) for name in ours}
    found: dict[str, list[Variant]] = {name: [] for name in given.names}
    for place in range(max(map(len, all_of_them.values()))):
        now = {name: each[place] for name, each in all_of_them.items() if place < len(each)}
        config = apply_settings(options, given.read, now) if place else given.read
        for name, own in given.names.items():
            if own in now:
                found[name] += _configured(options, config.clusters[own], now[own], given.profiles.get(name), name)
    return found


def _configured(
    options: argparse.Namespace, cluster: Cluster, parameters: Mapping[str, str], profile: Profile | None, name: str
) -> list[Variant]:
    """The variants of a cluster: as it is configured, and with its profile if a policy can use one."""
    spec = _stepped(cluster.spec, name)
    used = {getattr(named.policy, PROFILE, None) for named in spec.policies} - {None}
    # The simulated cluster has no metric with a profile: the trial adds the given profile, if there is one.
    rest = {metric: reading for metric, reading in cluster.metrics.items() if metric not in used}
    names = plant_metrics(options.config, replace(cluster, metrics=rest), _shown(options, cluster))
    shown = replace(spec, metrics=tuple(rest))
    if used:
        metric = str(next(iter(used)))
        return [
            Variant(
                policy=CONFIGURED, spec=shown, parameters=parameters, names=names, profile=metric if profile else ""
            )
        ]
    found = [Variant(policy=CONFIGURED, spec=shown, parameters=parameters, names=names)]
    if profile is not None and any(_accepts_profile(named.policy) for named in spec.policies):
        more = replace(shown, policies=_with_profile(spec))
        found.append(
            Variant(policy=f"{CONFIGURED} + profile", spec=more, parameters=parameters, names=names, profile=PROFILE)
        )
    return found


def _shown(options: argparse.Namespace, cluster: Cluster) -> dict[str, str]:
    everything = {**plants.plant(options.plant).metrics, **dict(options.metric)}
    return {name: shown for name, shown in everything.items() if name in cluster.metrics}


def _accepts_profile(policy: Any) -> bool:  # noqa: ANN401 - any plug-in
    return any(field.name == PROFILE for field in dataclasses.fields(policy))


def _with_profile(spec: ClusterSpec) -> tuple[NamedPolicy, ...]:
    """The policies, with a profile for those that can use one."""

    def profiled(policy: Any) -> Any:  # noqa: ANN401 - any plug-in
        return replace(policy, **{PROFILE: PROFILE}) if _accepts_profile(policy) else policy

    return tuple(NamedPolicy(named.name, profiled(named.policy)) for named in spec.policies)


def _stepped(spec: ClusterSpec, name: str) -> ClusterSpec:
    """The spec with its interval rounded up to steps of the simulation."""
    steps = max(1, math.ceil(spec.interval.total_seconds() / STEP))
    return replace(spec, name=name, interval=timedelta(seconds=STEP * steps))


def baseline(text: str) -> tuple[str, Baseline]:
    """A policy to compare with: NAME=SETTINGS as in a configuration file, one of the benchmark, or an installed one."""
    name, equals, settings = text.partition("=")
    if equals:
        known = BASELINES.get(name, Baseline("", bare=False))
        return name, replace(known, settings=settings, policy=None)
    if name in BASELINES:
        return name, BASELINES[name]
    installed = plugins.names(Kind.POLICY)
    if name not in installed:
        names = dict.fromkeys([*BASELINES, *installed])
        raise argparse.ArgumentTypeError(
            f"{name!r} is not a policy{plugins.guess(name, names)}; expected NAME=SETTINGS, or one of "
            f"{', '.join(names)}"
        )
    return name, Baseline(f"{{type: {name}}}", bare=False)


def _baseline_variants(
    policies: Sequence[tuple[str, Baseline]],
    own: ClusterSpec,
    slo: float,
    one: float,
    profile: Profile | None,
) -> list[Variant]:
    """Other policies, with their default parameters and all metrics of the simulated cluster.

    All of them use the limits, interval, slots and partitions of the configured cluster (`own`). Policies that can use
    a profile are also tried with it. Raises ConfigurationError for a policy that lacks parameters, for example.
    """
    found = []
    for label, other in policies:
        if other is BASELINES["static"]:
            found.append(Variant(policy=label, spec=replace(own, policies=(), combine=None), static=True))
            continue
        try:
            made = baseline_spec(label, other, slo, one)
        except ConfigurationError as error:
            problems = tuple(f"--policy {problem}" for problem in error.problems)
            raise wrong(
                *problems, f"--policy {label}: give its parameters like --policy '{label}={{type: ...}}'"
            ) from error
        spec = replace(
            made,
            name=own.name,
            limits=own.limits,
            interval=own.interval,
            slots_per_replica=own.slots_per_replica,
            partitions=own.partitions,
        )
        found.append(Variant(policy=label, spec=spec, bare=other.bare, oracle=other.oracle))
        if profile is not None and not other.oracle and any(_accepts_profile(named.policy) for named in spec.policies):
            more = replace(spec, policies=_with_profile(spec))
            found.append(Variant(policy=f"{label} + profile", spec=more, bare=other.bare, profile=PROFILE))
    return found


# Simulated clusters


def build_case(
    options: argparse.Namespace,
    given: Chosen,
    there: Known,
    tried: Sequence[Variant],
    policies: Sequence[tuple[str, Baseline]],
) -> tuple[Case, str]:
    """The simulated cluster for a cluster of the history, and the rate of a worker with its origin, in words."""
    name = there.cluster
    cluster = given.read.clusters[given.names[name]]
    described = plants.plant(options.plant)
    profile = given.profiles.get(name)
    plant = described.plant if profile is None else plant_from_profile(described.plant, profile)
    plant = replace(plant, slo=given.slo[name])
    if plant.partitions is None:
        plant = replace(plant, partitions=cluster.spec.partitions)
    one, why = _one(options, described, cluster.spec, profile, there.peak, plant.gamma)
    try:
        static = max(1, math.ceil(STATIC_HEADROOM * needed([there.peak * STEP], one, plant.gamma)[0]))
    except ValueError as error:
        raise wrong(f"{error} ({name}; {why})") from error
    others = _baseline_variants(policies, _stepped(cluster.spec, name), plant.slo, one, profile)
    return Case(plant, one, static, (*tried, *others), profile), f"{format_number(one)} records/s ({why})"


def _one(
    options: argparse.Namespace,
    described: plants.Described,
    spec: ClusterSpec,
    profile: Profile | None,
    peak: float,
    gamma: float,
) -> tuple[float, str]:
    if profile is not None and profile.capacity is not None:
        return profile.capacity.rate, "its profile"
    if options.rate_per_worker is not None:
        return options.rate_per_worker, "--rate-per-worker"
    if described.rate_per_worker is not None:
        return described.rate_per_worker, f"`rate_per_worker` of {options.plant}"
    if spec.capacity.per_replica is not None:
        return spec.capacity.per_replica, "capacity.per_replica of the configuration"
    workers = max(spec.limits.minimum, round(PEAK_SHARE * spec.limits.maximum), 1)
    return (peak or 1.0) / work(workers, gamma), f"so that {workers} at 100 % process the peak"
