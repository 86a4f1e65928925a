"""What a back-test tries: the clusters of a configuration, its variants, and simulated clusters made as theirs are."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from autoscaler.config import document
from autoscaler.config.document import Invalid, Node, Problems
from autoscaler.config.model import Cluster, Config
from autoscaler.core.explain import format_number
from autoscaler.core.model import ClusterSpec, NamedPolicy
from autoscaler.core.workload_profile import Profile
from autoscaler.plugins import Kind
from autoscaler.ports import ConfigurationError
from autoscaler.simulation.baselines import BASELINES, Baseline
from autoscaler.simulation.plant import STEP, work
from autoscaler.simulation.scoring import needed
from autoscaler.simulation.trial import STATIC_HEADROOM, Case, Variant, plant_from_profile
from autoscaler.trace import profile_file as profiles

if TYPE_CHECKING:
    from autoscaler.history.backtest_job import Known

CONFIGURED = "configured"
"""What tables call the policies that the configuration has."""

PROFILE = "profile"
"""The metric that shows a profile to a policy that is given one for the trial; such a policy's parameter is called so
too."""

Setting = tuple[str, tuple[str, ...]]
"""A key, like `main.objective`, and the values that are tried."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `backtest` and `tune` have in common to a parser."""
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
        "down.window=0s,5m; repeated, every combination is tried",
    )
    add("--seeds", type=arguments.count, default=1, metavar="N", help="from 1 to N (default: 1)")
    add(
        "--slo",
        type=arguments.span,
        metavar="TIME",
        help="no record should wait longer (default: the policy's objective)",
    )
    add(
        "--profiles",
        type=Path,
        metavar="DIR",
        help="profiles of `autoscaler profile`: the simulated clusters are made as they say, and policies that can use "
        "one are tried with it too, on days after those that it was made of",
    )
    add(
        "--plant",
        default="k8s",
        metavar="NAME|FILE",
        help="the simulated cluster, where no profile says otherwise: as for `simulate` (default: k8s)",
    )
    add(
        "--rate-per-worker",
        "--one",
        type=arguments.above,
        metavar="RATE",
        help="records/s that one worker processes, where no profile says it",
    )
    add(
        "--metric",
        action="append",
        type=arguments.pair,
        default=[],
        metavar="NAME=SHOWN",
        help="what a metric of the configuration is of what the simulated cluster shows, where that is not clear",
    )


def _setting(text: str) -> Setting:
    key, equals, values = text.partition("=")
    if not equals or not all(key.split(".")) or not values.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not like main.objective=30s,60s")
    return key, tuple(_split(values))


def _split(text: str) -> Iterator[str]:
    """Split at commas, but not within lists, mappings and quotes."""
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
    """What is tried on which clusters.

    Attributes:
        read: the configuration.
        names: cluster in the history -> its name in the configuration.
        profiles: cluster -> its profile, of those that have one.
        slo: seconds that a record may wait, of each cluster.
    """

    read: Config
    names: Mapping[str, str]
    profiles: Mapping[str, Profile]
    slo: Mapping[str, float]

    @property
    def first(self) -> dict[str, date]:
        """The first day on which a cluster may be tried: its profile must not know that day."""
        return {
            name: (profile.end.astimezone(UTC) + timedelta(days=1)).date() for name, profile in self.profiles.items()
        }


def chosen(options: argparse.Namespace) -> Chosen:
    """Read the configuration and the profiles of the clusters that are asked for.

    Raises:
        ConfigurationError: they cannot be read, or there is no such cluster.
    """
    if options.since is not None and options.until is not None and options.since >= options.until:
        raise wrong("--to must be after --from")
    read = configuration.load(options.config)
    wanted = list(dict.fromkeys(options.cluster or read.clusters))
    if len(read.clusters) == 1 and len(wanted) == 1:
        # Named on the command line: it is meant, whatever the configuration calls it.
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
        raise wrong(f"--profiles {directory}: is no directory; `autoscaler profile` makes one")
    found: dict[str, Profile] = {}
    problems = []
    for name in names:
        path = directory / profiles.name(name)
        try:
            found[name] = profiles.load(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise wrong(*problems)
    if not found:
        raise wrong(f"--profiles {directory}: has none of {', '.join(sorted(names))}; `autoscaler profile` makes them")
    return found


def _objective(cluster: Cluster, usual: float) -> float:
    """What the cluster's policies say that a record may wait; the least of them."""
    found = [getattr(named.policy, "objective", None) for named in cluster.spec.policies]
    return min([one.total_seconds() for one in found if isinstance(one, timedelta)], default=usual)


# Variants


def combinations(settings: Sequence[Setting]) -> list[dict[str, str]]:
    """Every combination of values; the first one changes nothing."""
    if not settings:
        return [{}]
    keys = [key for key, _ in settings]
    every = itertools.product(*(values for _, values in settings))
    return [{}, *(dict(zip(keys, values, strict=True)) for values in every)]


def path_of(key: str, name: str, policies: Sequence[str]) -> tuple[str, ...]:
    """Where a key like `main.objective` is in a configuration: of that policy, or else of the cluster itself."""
    for policy in sorted(policies, key=len, reverse=True):
        if key.startswith(f"{policy}."):
            return ("clusters", name, "policies", policy, *key.removeprefix(f"{policy}.").split("."))
    return ("clusters", name, *key.split("."))


def patched(options: argparse.Namespace, read: Config, settings: Mapping[str, Mapping[str, str]]) -> Config:
    """The configuration with settings in their places.

    Args:
        options: of the command.
        read: the configuration without them.
        settings: cluster, as the configuration calls it -> key -> value, both as they are written.

    Raises:
        ConfigurationError: they are refused, in the words in which the file itself would be.
    """
    root: Node = document.read(options.config, Problems(str(options.config)))
    for name, changes in settings.items():
        policies = [named.name for named in read.clusters[name].spec.policies]
        for key, text in changes.items():
            problems = Problems(f"--set {key}={text}")
            try:
                root = document.put(root, path_of(key, name, policies), document.parse(text, problems))
            except Invalid:
                raise problems.error() from None
            except KeyError as error:
                raise wrong(f"--set {key}={text}: {error.args[0]} of {options.config} has no keys in it") from error
    try:
        return configuration.load(options.config, root)
    except ConfigurationError as error:
        told = ", ".join(dict.fromkeys(f"{key}={text}" for each in settings.values() for key, text in each.items()))
        raise wrong(*(f"--set {told}: {problem}" for problem in error.problems)) from error


def variants(
    options: argparse.Namespace, given: Chosen, grid: Callable[[str], Sequence[Mapping[str, str]]]
) -> dict[str, list[Variant]]:
    """What is tried of the configuration itself: cluster -> each combination of its settings.

    Args:
        options: of the command.
        given: the clusters.
        grid: cluster, as the configuration calls it -> combinations, of which the first changes nothing.

    Raises:
        ConfigurationError: one of them is refused.
    """
    ours = dict.fromkeys(given.names.values())
    all_of_them = {name: grid(name) for name in ours}
    found: dict[str, list[Variant]] = {name: [] for name in given.names}
    for place in range(max(map(len, all_of_them.values()))):
        now = {name: each[place] for name, each in all_of_them.items() if place < len(each)}
        config = patched(options, given.read, now) if place else given.read
        for name, own in given.names.items():
            if own in now:
                found[name] += _configured(options, config.clusters[own], now[own], given.profiles.get(name), name)
    return found


def _configured(
    options: argparse.Namespace, cluster: Cluster, parameters: Mapping[str, str], profile: Profile | None, name: str
) -> list[Variant]:
    """A cluster as it is configured, and with a profile where it could have one."""
    spec = _stepped(cluster.spec, name)
    used = {getattr(named.policy, PROFILE, None) for named in spec.policies} - {None}
    # What shows a profile is no metric of the simulated cluster; it is shown one as well, or else has none.
    rest = {metric: told for metric, told in cluster.metrics.items() if metric not in used}
    names = plant_metrics(options.config, replace(cluster, metrics=rest), _shown(options, cluster))
    shown = replace(spec, metrics=tuple(rest))
    if used:
        metric = str(next(iter(used)))
        return [Variant(CONFIGURED, shown, parameters, names, profile=metric if profile else "")]
    found = [Variant(CONFIGURED, shown, parameters, names)]
    if profile is not None and any(_can(named.policy) for named in spec.policies):
        more = replace(shown, policies=_with_profile(spec))
        found.append(Variant(f"{CONFIGURED} + profile", more, parameters, names, profile=PROFILE))
    return found


def _shown(options: argparse.Namespace, cluster: Cluster) -> dict[str, str]:
    everything = {**plants.plant(options.plant).metrics, **dict(options.metric)}
    return {name: shown for name, shown in everything.items() if name in cluster.metrics}


def _can(policy: Any) -> bool:  # noqa: ANN401 - any plug-in
    return any(field.name == PROFILE for field in dataclasses.fields(policy))


def _with_profile(spec: ClusterSpec) -> tuple[NamedPolicy, ...]:
    """The policies, those that can use a profile looking at one."""
    return tuple(_looking(named) if _can(named.policy) else named for named in spec.policies)


def _looking(named: NamedPolicy) -> NamedPolicy:
    policy: Any = named.policy
    return NamedPolicy(named.name, replace(policy, **{PROFILE: PROFILE}))


def _stepped(spec: ClusterSpec, name: str) -> ClusterSpec:
    """With the interval rounded up to the steps that a simulation goes by."""
    steps = max(1, math.ceil(spec.interval.total_seconds() / STEP))
    return replace(spec, name=name, interval=timedelta(seconds=STEP * steps))


def baseline(text: str) -> tuple[str, Baseline]:
    """A policy to compare with: NAME=SETTINGS as in a configuration file, one of the benchmark's, or any installed.

    Raises:
        argparse.ArgumentTypeError: there is none of that name.
    """
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
            f"{name!r} is no policy{plugins.guess(name, names)}; expected NAME=SETTINGS, or one of {', '.join(names)}"
        )
    return name, Baseline(f"{{type: {name}}}", bare=False)


def compared(
    policies: Sequence[tuple[str, Baseline]],
    own: ClusterSpec,
    slo: float,
    one: float,
    profile: Profile | None,
) -> list[Variant]:
    """Other policies, with the parameters that they have by default and all that the simulated cluster shows.

    Args:
        policies: by name.
        own: what is configured: its limits, interval and slots hold for all.
        slo: seconds that a record may wait.
        one: records/s that one worker processes.
        profile: of the cluster, if there is one: policies that can use one are tried with it too.

    Raises:
        ConfigurationError: one of them cannot be read, such as one that needs a parameter.
    """
    found = []
    for label, other in policies:
        if other is BASELINES["static"]:
            found.append(Variant(label, replace(own, policies=(), combine=None), static=True))
            continue
        try:
            made = baseline_spec(label, other, slo, one)
        except ConfigurationError as error:
            told = tuple(f"--policy {problem}" for problem in error.problems)
            raise wrong(*told, f"--policy {label}: say its parameters like --policy '{label}={{type: ...}}'") from error
        spec = replace(
            made,
            name=own.name,
            limits=own.limits,
            interval=own.interval,
            slots_per_replica=own.slots_per_replica,
            partitions=own.partitions,
        )
        found.append(Variant(label, spec, bare=other.bare, oracle=other.oracle))
        if profile is not None and not other.oracle and any(_can(named.policy) for named in spec.policies):
            more = replace(spec, policies=_with_profile(spec))
            found.append(Variant(f"{label} + profile", more, bare=other.bare, profile=PROFILE))
    return found


# Simulated clusters


def case(
    options: argparse.Namespace,
    given: Chosen,
    there: Known,
    tried: Sequence[Variant],
    policies: Sequence[tuple[str, Baseline]],
) -> tuple[Case, str]:
    """A simulated cluster for one of the history, and a sentence about how big a worker is.

    Args:
        options: of the command.
        given: the clusters.
        there: what the history has of it.
        tried: what is tried of the configuration itself.
        policies: what else is.
    """
    name = there.cluster
    cluster = given.read.clusters[given.names[name]]
    told = plants.plant(options.plant)
    profile = given.profiles.get(name)
    plant = replace(told.plant if profile is None else plant_from_profile(told.plant, profile), slo=given.slo[name])
    if plant.partitions is None:
        plant = replace(plant, partitions=cluster.spec.partitions)
    one, why = _one(options, told, cluster.spec, profile, there.peak, plant.gamma)
    static = max(1, math.ceil(STATIC_HEADROOM * needed([there.peak * STEP], one, plant.gamma)[0]))
    others = compared(policies, _stepped(cluster.spec, name), plant.slo, one, profile)
    return Case(plant, one, static, (*tried, *others), profile), f"{format_number(one)} records/s ({why})"


def _one(
    options: argparse.Namespace,
    told: plants.Described,
    spec: ClusterSpec,
    profile: Profile | None,
    peak: float,
    gamma: float,
) -> tuple[float, str]:
    if profile is not None and profile.capacity is not None:
        return profile.capacity.rate, "its profile"
    if options.rate_per_worker is not None:
        return options.rate_per_worker, "--rate-per-worker"
    if told.rate_per_worker is not None:
        return told.rate_per_worker, f"`rate_per_worker` of {options.plant}"
    if spec.capacity.per_replica is not None:
        return spec.capacity.per_replica, "capacity.per_replica of the configuration"
    workers = max(spec.limits.minimum, round(PEAK_SHARE * spec.limits.maximum), 1)
    return (peak or 1.0) / work(workers, gamma), f"so that {workers} at 100 % process the peak"
