"""Invalid configurations: each problem with its line, its path and the expected value; all of them together."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoscaler import plugins
from autoscaler.config import build, document
from autoscaler.config.model import Config
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import Kind

Refused = Callable[..., list[str]]

TARGET = "target: {type: stub-target"
QUERY = "{source: main, name: lag"
POLICY = "{type: stub-policy, within: 60s"


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [
        # keys
        (
            "max: 4",
            "mx: 4",
            [
                "4: clusters.demo.max: missing; expected a whole number",
                "7: clusters.demo.mx: unknown key; did you mean 'max'?",
            ],
        ),
        (
            "clusters:",
            "cluster:",
            [
                "1: clusters: missing; expected a mapping, here or in fleets",
                "3: cluster: unknown key; did you mean 'clusters'?",
            ],
        ),
        (TARGET, TARGET + ", cuont: 3", ["5: clusters.demo.target.cuont: unknown key; did you mean 'count'?"]),
        (QUERY, QUERY + ", fctor: 3", ["10: clusters.demo.metrics.lag.fctor: unknown key; did you mean 'factor'?"]),
        (
            POLICY,
            POLICY + ", zzz: 3",
            [("12: clusters.demo.policies.calm.zzz: unknown key; known here: type, within, metric, rules")],
        ),
        (
            "name: lag",
            "name: lag, match: {a: [b]}",
            ["10: clusters.demo.metrics.lag.match.a: expected a string, not a list"],
        ),
        (", name: lag", "", ["10: clusters.demo.metrics.lag.name: missing; expected a string"]),
        (
            ", within: 60s",
            "",
            [("12: clusters.demo.policies.calm.within: missing; expected a duration like 30s, 5m or 1h30m")],
        ),
        # types
        ("max: 4", "max: four", ["7: clusters.demo.max: expected a whole number, not a string"]),
        ("max: 4", "max: 4.5", ["7: clusters.demo.max: expected a whole number, not the number 4.5"]),
        ("max: 4", "max:", ["7: clusters.demo.max: expected a whole number, not nothing"]),
        ("max: 4", "max: {a: 1}", ["7: clusters.demo.max: expected a whole number, not a mapping"]),
        (
            "max: 4",
            "max: ${MAX}",
            ["7: clusters.demo.max: the environment variable MAX is not set; set it for this process"],
        ),
        (
            "max: 4",
            "max: ${HOME",
            ["7: clusters.demo.max: only ${NAME} is understood, with letters, digits and _ in the name"],
        ),
        (TARGET, TARGET + ", share: '0.5'", ["5: clusters.demo.target.share: expected a number, not a string"]),
        (TARGET, TARGET + ", share: true", ["5: clusters.demo.target.share: expected a number, not true"]),
        (
            TARGET,
            TARGET + ", name: 5",
            [
                (
                    "5: clusters.demo.target.name: expected a string, not the number 5; if it is "
                    "meant as a string, put it in quotes: '5'"
                )
            ],
        ),
        (
            TARGET,
            TARGET + ", name: 'a${B}'",
            ["5: clusters.demo.target.name: the environment variable B is not set; set it for this process"],
        ),
        (
            TARGET,
            TARGET + ", directory: ''",
            [
                (
                    "5: clusters.demo.target.directory: expected the path of a file or "
                    "directory, not an empty or broken string"
                )
            ],
        ),
        (
            TARGET,
            TARGET + ', directory: "a\\0b"',
            [
                (
                    "5: clusters.demo.target.directory: expected the path of a file "
                    "or directory, not an empty or broken string"
                )
            ],
        ),
        (
            TARGET,
            TARGET + ", colour: gren",
            [("5: clusters.demo.target.colour: expected one of red, green, not 'gren'; did you mean 'green'?")],
        ),
        (TARGET, TARGET + ", level: 4", ["5: clusters.demo.target.level: expected one of low, high, 3, not '4'"]),
        (
            TARGET,
            TARGET + ", colour: [red]",
            [("5: clusters.demo.target.colour: expected one of red, green, not a list")],
        ),
        (TARGET, TARGET + ", words: one", ["5: clusters.demo.target.words: expected a list, not a string"]),
        (
            TARGET,
            TARGET + ", words: [a, 1]",
            [
                (
                    "5: clusters.demo.target.words[1]: expected a string, not the number 1; "
                    "if it is meant as a string, put it in quotes: '1'"
                )
            ],
        ),
        (TARGET, TARGET + ", pair: [a]", ["5: clusters.demo.target.pair: expected a list of 2, not of 1"]),
        (
            TARGET,
            TARGET + ", either: [a]",
            [("5: clusters.demo.target.either: expected a number or a string, not a list")],
        ),
        (
            TARGET,
            TARGET + ", labels: [a]",
            [("5: clusters.demo.target.labels: expected a mapping (key: value), not a list")],
        ),
        (
            TARGET,
            TARGET + ", points: [{x: 1}, {y: 1}]",
            [("5: clusters.demo.target.points[1].x: missing; expected a number")],
        ),
        # errors of a plug-in, on the line of the first field that it names
        (
            TARGET,
            TARGET + ",\n      points: [{x: 1},\n        {x: 101}]",
            ["7: clusters.demo.target.points[1].x: must be at most 100, not 101.0"],
        ),
        (
            TARGET,
            TARGET + ",\n      points: [{x: 1},\n        {x: 99, y: 99}]",
            ["7: clusters.demo.target.points[1]: the point is too far out"],
        ),
        ('"http://127.0.0.1:9090"}', "x,\n    timeout: 0s}", ["3: sources.main.timeout: must be above 0s"]),
        (
            "stub-policy, within: 60s",
            "crashing-policy",
            [("12: clusters.demo.policies.calm: CrashingPolicy failed: KeyError: 'oops'")],
        ),
        (
            "stub-policy, within: 60s",
            "exiting-policy",
            ["12: clusters.demo.policies.calm: ExitingPolicy failed: SystemExit: 0"],
        ),
        # durations
        (
            "60s",
            "60",
            [("12: clusters.demo.policies.calm.within: 60 has no unit; write it like 60s, 5m, 1h30m or 500ms")],
        ),
        ("60s", "0", ["12: clusters.demo.policies.calm.within: 0 has no unit; write it like 0s, 5m, 1h30m or 500ms"]),
        (
            "60s",
            "1:30",
            [("12: clusters.demo.policies.calm.within: expected a duration like 30s, 5m, 1h30m or 500ms, not '1:30'")],
        ),
        (
            "60s",
            "-5s",
            [("12: clusters.demo.policies.calm.within: expected a duration like 30s, 5m, 1h30m or 500ms, not '-5s'")],
        ),
        (
            "60s",
            "true",
            [("12: clusters.demo.policies.calm.within: expected a duration like 30s, 5m or 1h30m, not true")],
        ),
        # plug-ins
        (
            TARGET,
            "target: {type: stub-targte",
            [
                (
                    "5: clusters.demo.target.type: unknown target 'stub-targte'; "
                    "installed: {targets}; did you mean 'stub-target'?"
                )
            ],
        ),
        (
            TARGET + "}",
            "target: {}",
            ["5: clusters.demo.target.type: missing; expected the name of a target; installed: {targets}"],
        ),
        (
            TARGET + "}",
            "target: stub-target",
            [("5: clusters.demo.target: expected a target: a mapping with `type` and its parameters, not a string")],
        ),
        (
            "policies:\n",
            "policies:\n      type: stub-policy\n",
            [
                (
                    "12: clusters.demo.policies.type: expected a policy: a mapping with `type` and its parameters, "
                    "not a string; put `type` and the keys beside it under a name of your choice"
                )
            ],
        ),
        (
            TARGET + "}",
            "target: {type: [a]}",
            [("5: clusters.demo.target.type: expected the name of a target, not a list")],
        ),
        (
            "min: 1",
            "engine: []",
            ["6: clusters.demo.engine: expected an engine: a mapping with `type` and its parameters, not a list"],
        ),
        ("min: 1", "engine: {type: []}", ["6: clusters.demo.engine.type: expected the name of an engine, not a list"]),
        # names and references
        (
            "source: main",
            "source: mian",
            [("10: clusters.demo.metrics.lag.source: unknown source 'mian'; sources: main; did you mean 'main'?")],
        ),
        (
            "source: main",
            "source: 3",
            [
                (
                    "10: clusters.demo.metrics.lag.source: expected a string, not the number 3; if "
                    "it is meant as a string, put it in quotes: '3'"
                )
            ],
        ),
        ("source: main, ", "", ["10: clusters.demo.metrics.lag.source: missing; sources: main"]),
        (
            "lag: {",
            "target: {",
            [
                (
                    "10: clusters.demo.metrics.target: a metric may not be called target: the name "
                    "is reserved for the target"
                ),
                (
                    "12: clusters.demo.policies.calm: the policy reads the metric 'lag', which the "
                    "cluster does not have; metrics: target"
                ),
            ],
        ),
        (
            POLICY,
            POLICY + ", metric: lagg",
            [
                (
                    "12: clusters.demo.policies.calm.metric: the policy reads the metric "
                    "'lagg', which the cluster does not have; did you mean 'lag'?"
                )
            ],
        ),
        (
            POLICY,
            POLICY + ",\n        rules: [{metric: lag},\n          {metric: cpu}]",
            [
                (
                    "14: clusters.demo.policies.calm.rules[1].metric: the policy reads the metric 'cpu', which the "
                    "cluster does not have; metrics: lag"
                )
            ],
        ),
        (
            "demo:",
            "de mo:",
            [
                (
                    '4: clusters."de mo": a name is 1 to 63 letters, digits, `_`, `.`, `-`, and does not begin with '
                    "`.` or `-`"
                )
            ],
        ),
        (
            "demo:",
            "../demo:",
            [
                (
                    '4: clusters."../demo": a name is 1 to 63 letters, digits, `_`, `.`, `-`, and does not begin with '
                    "`.` or `-`"
                )
            ],
        ),
        ("calm:", "? " + "a" * 64 + "\n      :", None),
        # across fields
        ("min: 1", "min: 5", ["6: clusters.demo.min: must not be above max (4), not 5"]),
        ("min: 1", "min: -1", ["6: clusters.demo.min: must be 0 or more, not -1"]),
        ("max: 4", "max: 0", ["7: clusters.demo.max: must be 1 or more, not 0"]),
        ("max: 4", "max: 100001", ["7: clusters.demo.max: must be at most 100,000, not 100001"]),
        (
            "min: 1",
            "slots_per_replica: 0",
            [("6: clusters.demo.slots_per_replica: must be 1 or more, not 0")],
        ),
        ("min: 1", "partitions: 0", ["6: clusters.demo.partitions: must be 1 or more, not 0"]),
        (
            "min: 1",
            "timeout: 15s",
            [("6: clusters.demo.timeout: must be shorter than the interval (15s), not 15s")],
        ),
        ("min: 1", "timeout: 0s", ["6: clusters.demo.timeout: must be above 0s"]),
        ("interval: 15s", "interval: 0s", ["8: clusters.demo.interval: must be at least 100ms"]),
        (
            "min: 1",
            "max_age: 1s",
            [("6: clusters.demo.max_age: must be at least the timeout (10s), not 1s: slow answers would be stale")],
        ),
        (
            "min: 1",
            "up: {tolerance: 1}",
            [("6: clusters.demo.up.tolerance: must be from 0 to below 1, not 1.0")],
        ),
        (
            "min: 1",
            "up: {rates: [{kind: replicas, value: 0, period: 1m}]}",
            ["6: clusters.demo.up.rates[0].value: must be above 0, not 0.0"],
        ),
        (
            "min: 1",
            "settle:\n      throughput: speed",
            [("7: clusters.demo.settle.throughput: the cluster has no metric 'speed'; metrics: lag")],
        ),
        (
            "min: 1",
            "capacity: {saturation: lga}",
            [("6: clusters.demo.capacity.saturation: the cluster has no metric 'lga'; did you mean 'lag'?")],
        ),
        (
            "sources:",
            "daemon: {listen: '8080'}\nsources:",
            ["1: daemon.listen: must be host:port with a port from 0 to 65535, not '8080'"],
        ),
        (
            "sources:",
            "daemon: {advertise: '10.0.0.7:8765'}\nsources:",
            ["1: daemon.advertise: must be a URL like http://10.0.0.7:8765, not '10.0.0.7:8765'"],
        ),
        ("sources:", "daemon: {decisions: 0}\nsources:", ["1: daemon.decisions: must be 1 or more, not 0"]),
        ("sources:", "daemon: {history: 0s}\nsources:", ["1: daemon.history: must be above 0s"]),
        ("sources:", "daemon:\nsources:", ["1: daemon: expected a mapping (key: value), not nothing"]),
        (f"calm: {POLICY}}}", "{}", ["11: clusters.demo.policies: at least one policy is needed"]),
    ],
)
def test_an_invalid_line_is_named(refused: Refused, good: str, old: str, new: str, problems: list[str] | None) -> None:
    assert old in good
    found = refused(good.replace(old, new, 1))
    if problems is None:
        assert all("a name is 1 to 63 letters" in problem for problem in found)
    else:
        installed = ", ".join(plugins.names(Kind.TARGET))
        assert found == [problem.replace("{targets}", installed) for problem in problems]


@pytest.mark.parametrize(
    ("text", "shape"), [("clusters: {}\n", ""), ("clusters:\n", "nothing"), ("clusters: [a]\n", "")]
)
def test_at_least_one_cluster_is_needed(refused: Refused, text: str, shape: str) -> None:
    (problem,) = refused(text)
    assert problem.startswith("1: clusters: ")
    assert shape in problem


def test_all_problems_are_reported_together_in_the_order_of_the_file(refused: Refused) -> None:
    assert refused("""\
daemon: {directori: x, log: jsn}
sources:
  job: {type: stub-sourse}
  ok: {type: stub-source, token: "${NOPE}"}
x-mine: [anything]
clusterz: 3
clusters:
  demo:
    min: 5
    max: 3
    interval: 5
    policies:
      a: {type: stub-policy, within: soon}
    metrics:
      lag: {source: jobb, name: x}
      cpu: {source: job, whatever: [x]}
    up:
      rates:
        - {kind: replicaz, value: .nan, period: 1m}
        - {kind: percent, value: 0, period: 1m}
    settle: {lag: foo, short: -1}
  other: 7
""") == [
        "1: daemon.directori: unknown key; did you mean 'directory'?",
        "1: daemon.log: expected one of console, json, not 'jsn'; did you mean 'json'?",
        (
            "3: sources.job.type: unknown source 'stub-sourse'; "
            f"installed: {', '.join(plugins.names(Kind.SOURCE))}; did you mean 'stub-source'?"
        ),
        "4: sources.ok.url: missing; expected a string",
        "4: sources.ok.token: the environment variable NOPE is not set; set it for this process",
        "6: clusterz: unknown key; did you mean 'clusters'?",
        "8: clusters.demo.target: missing; expected a target: a mapping with `type` and its parameters",
        "9: clusters.demo.min: must not be above max (3), not 5",
        "11: clusters.demo.interval: 5 has no unit; write it like 5s, 5m, 1h30m or 500ms",
        "13: clusters.demo.policies.a.within: expected a duration like 30s, 5m, 1h30m or 500ms, not 'soon'",
        "15: clusters.demo.metrics.lag.source: unknown source 'jobb'; sources: job, ok; did you mean 'job'?",
        (
            "19: clusters.demo.up.rates[0].kind: expected one of replicas, percent, not 'replicaz'; "
            "did you mean 'replicas'?"
        ),
        "19: clusters.demo.up.rates[0].value: expected a finite number, not nan",
        "20: clusters.demo.up.rates[1].value: must be above 0, not 0.0",
        "21: clusters.demo.settle.short: must be 0 or more, not -1.0",
        "21: clusters.demo.settle.lag: the cluster has no metric 'foo'; metrics: lag, cpu",
        "22: clusters.other: expected a mapping (key: value), not the number 7",
    ]


def test_a_target_belongs_to_one_cluster(refused: Refused, good: str) -> None:
    second = good.split("clusters:\n")[1].replace("demo:", "other:").replace("max: 4", "max: none")
    assert refused(good + second) == [
        (
            "14: clusters.other.target: cluster 'demo' has the same target: "
            "each would undo the changes of the other; give each its own"
        ),
        "16: clusters.other.max: expected a whole number, not a string",
    ]


def test_at_most_a_hundred_problems_are_reported(refused: Refused) -> None:
    found = refused("".join(f"k{number}: 1\n" for number in range(500)))
    assert len(found) == 101
    assert found[-1] == "100: (file): and 401 more problems from here on"


@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        ("failing-metrics", "FailingMetrics failed: KeyError: 'oops'"),
        ("failing-levels", "FailingLevels failed: KeyError: 'oops'"),
        ("failing-objective", "FailingObjective failed: KeyError: 'oops'"),
        ("one-name", "OneName failed: TypeError: its attribute metrics is 'lag', expected a tuple of names"),
        ("odd-lookback", "OddLookback failed: TypeError: its attribute lookback is 5, expected a timedelta"),
        ("odd-ranges", "OddRanges failed: TypeError: its attribute ranges is ('lag',), expected a Range by name"),
    ],
)
def test_a_policy_with_invalid_attributes_is_named(refused: Refused, good: str, type_: str, problem: str) -> None:
    text = good.replace("stub-policy, within: 60s", type_)
    assert refused(text) == [f"12: clusters.demo.policies.calm: {problem}"]


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ("{source: odd, fails: doubts}", "12: clusters.demo.metrics.lag: OddQuery failed: KeyError: 'oops'"),
        ("{source: odd, fails: ages}", "11: clusters.demo.metrics: OddQuery failed: KeyError: 'oops'"),
        ("{source: failing}", "12: clusters.demo.metrics.lag: FailingShare failed: KeyError: 'oops'"),
        ("{source: odd, fails: check}", "12: clusters.demo.metrics.lag: OddSource failed: KeyError: 'oops'"),
    ],
)
def test_a_query_whose_attributes_raise_is_named(refused: Refused, good: str, metric: str, problem: str) -> None:
    text = good.replace("{source: main, name: lag}", metric)
    text = text.replace("sources:", "sources:\n  odd: {type: odd-source}\n  failing: {type: failing-source}")
    assert refused(text) == [problem]


@pytest.mark.parametrize(("fails", "key"), [("refused", ".fails"), ("together", "")])
def test_a_query_that_does_not_fit_its_source_is_refused(refused: Refused, good: str, fails: str, key: str) -> None:
    text = good.replace("{source: main, name: lag}", f"{{source: odd, fails: {fails}}}")
    text = text.replace("sources:", "sources:\n  odd: {type: odd-source}")
    assert refused(text) == [f"11: clusters.demo.metrics.lag{key}: is not for this source"]


SPARK = """\
sources:
  job: {type: spark, app: orders, report: "http://driver:4050", batch: %s}
clusters:
  c:
    target: {type: advice}
    max: 4
    metrics:
      tasks: {source: job, metric: %s}
    policies:
      main: {type: target-tracking, metric: tasks, target: 1}
"""


@pytest.mark.parametrize(
    ("batch", "metric", "problem"),
    [
        ("false", "pending_tasks", "pending_tasks is for batch applications; give the source batch: true"),
        ("true", "lag", "lag is for streaming queries, but the source has batch: true; use pending_tasks, "),
    ],
)
def test_a_metric_of_spark_is_for_batch_jobs_or_for_queries(
    refused: Refused, accepted: Callable[..., Config], batch: str, metric: str, problem: str
) -> None:
    (found,) = refused(SPARK % (batch, metric))
    assert found.startswith(f"8: clusters.c.metrics.tasks.metric: {problem}")
    assert accepted(SPARK % ("true", "pending_tasks")).clusters


def test_a_timeout_property_that_raises_is_named(refused: Refused, good: str) -> None:
    text = good.replace("{type: stub-target}", "{type: failing-target}")
    assert refused(text) == ["4: clusters.demo: FailingTarget failed: KeyError: 'oops'"]


def test_parameters_with_the_names_of_optional_attributes_are_not_such_attributes(
    accepted: Callable[..., Config], good: str
) -> None:
    text = good.replace("stub-policy, within: 60s", "own-names, packages: 4").replace(
        "{source: main, name: lag}", "{source: odd, share: 0.7, fails: nothing}"
    )
    warnings = accepted(text.replace("sources:", "sources:\n  odd: {type: odd-source}")).warnings
    assert [one.partition(".yaml:")[2] for one in warnings] == ["11: clusters.demo.metrics.lag.share: is doubtful"]


def test_a_questionable_value_may_be_a_default(accepted: Callable[..., Config], good: str) -> None:
    text = good.replace("{source: main, name: lag}", "{source: odd, fails: nothing}")
    warnings = accepted(text.replace("sources:", "sources:\n  odd: {type: odd-source}")).warnings
    assert [one.partition(".yaml:")[2] for one in warnings] == ["11: clusters.demo.metrics.lag: is doubtful"]


def test_a_missing_part_of_a_package_is_named(refused: Refused, good: str) -> None:
    (problem,) = refused(good.replace("type: stub-policy", "type: needs-part"))
    assert problem.startswith(
        "12: clusters.demo.policies.calm.type: the policy 'needs-part' needs the package no_such_cloud.storage, "
    )


def test_a_plug_in_whose_extra_is_not_installed_is_refused(refused: Refused, good: str) -> None:
    assert refused(good.replace("type: stub-policy", "type: needs-package")) == [
        (
            "12: clusters.demo.policies.calm.type: the policy 'needs-package' needs the package no_such_cloud, "
            "which is not installed; install it with: pip install 'autoscaler-stub-plugins[cloud]'"
        )
    ]


@pytest.mark.parametrize(
    ("target", "package", "extra"),
    [
        ("{type: aws-asg, group: g, region: eu-central-1}", "boto3", "aws"),
        ("{type: kubernetes, name: n}", "kubernetes_asyncio", "kubernetes"),
    ],
)
def test_targets_of_ours_name_their_extra(
    refused: Refused, good: str, monkeypatch: pytest.MonkeyPatch, target: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (problem,) = refused(good.replace("{type: stub-target}", target))
    assert f"needs the package {package}, which is not installed; install it with: pip install '.[{extra}]'" in problem


@pytest.mark.parametrize(
    ("source", "package", "extra"),
    [
        ("{type: cloudwatch, region: eu-central-1}", "boto3", "aws"),
        ('{type: kafka, bootstrap_servers: "127.0.0.1:9092"}', "aiokafka", "kafka"),
        ('{type: http, url: "http://127.0.0.1"}', "jmespath", "http"),
    ],
)
def test_sources_of_ours_name_their_extra_unless_no_connection_is_made(
    refused: Refused,
    accepted: Callable[..., Config],
    good: str,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    package: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    text = good.replace("sources:", f"sources:\n  other: {source}")
    (problem,) = refused(text)
    assert problem.startswith(f"2: sources.other.type: the source {text.split('type: ')[1].split(',')[0]!r} needs ")
    assert f"{package}, which is not installed; install it with: pip install '.[{extra}]' in a clone, or " in problem
    assert accepted(text, offline=True).sources


@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        ("any-type", "the parameter AnyType.value has the type <class 'object'>, which a configuration cannot express"),
        ("unresolved", "the types of Unresolved cannot be resolved: name 'Missing' is not defined"),
        ("endless", "Endless contains itself"),
    ],
)
def test_a_plug_in_with_parameters_that_no_file_can_express_is_refused(
    refused: Refused, good: str, type_: str, problem: str
) -> None:
    text = good.replace("stub-policy, within: 60s", type_)
    assert refused(text) == [f"12: clusters.demo.policies.calm.type: {problem}"]


class TestSecrets:
    SOURCE = "{type: stub-source,"

    def test_an_unset_variable_is_named(self, refused: Refused, good: str) -> None:
        text = good.replace(self.SOURCE, self.SOURCE + " token: 'a ${NO_SUCH}',")
        assert refused(text) == [
            "2: sources.main.token: the environment variable NO_SUCH is not set; set it for this process"
        ]

    @pytest.mark.parametrize(
        ("old", "new", "problem"),
        [
            ("max: 4", "max: ${V}", "7: clusters.demo.max: expected a whole number, not a string"),
            ("15s", "${V}", "8: clusters.demo.interval: expected a duration like 30s"),
            (
                "lag: {source: main",
                "lag: {source: '${V}'",
                "10: clusters.demo.metrics.lag.source: unknown source 'four'",
            ),
            ("type: stub-policy", "type: '${V}'", "12: clusters.demo.policies.calm.type: unknown policy 'four'"),
            (
                "{type: stub-target}",
                "{type: stub-target, either: '${W}'}",
                "5: clusters.demo.target.either: the environment ",
            ),
            (
                "max: 4",
                "max: 4\n    settle: {lag: '${V}'}",
                "8: clusters.demo.settle.lag: the cluster has no metric 'four'",
            ),
        ],
    )
    def test_the_value_of_a_variable_is_checked_like_one_in_the_file(
        self, refused: Refused, good: str, old: str, new: str, problem: str
    ) -> None:
        (found,) = refused(good.replace(old, new), {"V": "four"})
        assert found.startswith(problem)

    def test_an_empty_variable_is_not_a_secret(self, refused: Refused, good: str) -> None:
        text = good.replace(self.SOURCE, self.SOURCE + " token: '${VOID}',")
        assert refused(text, {"VOID": ""}) == [
            "2: sources.main.token: the environment variable VOID is empty; set it for this process"
        ]

    @pytest.mark.parametrize("written", ["${}", "${A", "${A:-b}", "${1}", "${ A }", "${A}${"])
    def test_only_the_simple_form_of_a_variable_is_supported(self, refused: Refused, good: str, written: str) -> None:
        text = good.replace(self.SOURCE, f"{self.SOURCE} token: '{written}',")
        (problem,) = refused(text, {"A": "value"})
        assert problem.startswith("2: sources.main.token: only ${NAME} is understood")

    @pytest.mark.parametrize("written", ["1234567", "yes", "[hunter22]", "{hunter22: x}", "2020-01-01", "0x1234567"])
    def test_a_secret_of_the_wrong_type_is_not_shown(self, refused: Refused, good: str, written: str) -> None:
        (problem,) = refused(good.replace(self.SOURCE, f"{self.SOURCE} token: {written},"))
        assert problem.startswith("2: sources.main.token: expected a string or ${NAME}")
        assert written.strip("[]{}: x") not in problem

    def test_secrets_are_masked_in_messages_of_plug_ins(self, refused: Refused, good: str) -> None:
        for token, environ in (("refused", {}), ("${WORD}", {"WORD": "refused"})):
            text = good.replace(self.SOURCE, f"{self.SOURCE} token: '{token}',")
            assert refused(text, environ) == ["2: sources.main.token: *** does not fit the url"]

    def test_a_secret_of_several_lines_is_masked_too(self, refused: Refused, good: str) -> None:
        text = good.replace(self.SOURCE, self.SOURCE + " token: '${WORD}',").replace("60s", '"-- a\\nb --"')
        (problem,) = refused(text, {"WORD": "-- a\nb --\n"})
        assert "-- a" not in problem

    def test_a_long_secret_is_masked_completely(self, refused: Refused, good: str) -> None:
        word = "abcdefghij" * 100
        text = good.replace(self.SOURCE, self.SOURCE + " token: '${WORD}',").replace("60s", word)
        (problem,) = refused(text, {"WORD": word})
        assert "abc" not in problem

    def test_a_secret_that_is_a_common_word_masks_no_path(self, refused: Refused, good: str) -> None:
        text = good.replace(self.SOURCE, self.SOURCE + " token: clusters,").replace("max: 4", "max: x")
        assert refused(text) == ["7: clusters.demo.max: expected a whole number, not a string"]

    def test_secrets_are_masked_wherever_they_were_pasted(self, refused: Refused, good: str) -> None:
        text = good.replace(self.SOURCE, self.SOURCE + " token: '${WORD}',").replace("60s", "hunter22")
        (problem,) = refused(text, {"WORD": "hunter22"})
        assert problem.endswith("not '***'")


class TestWrongParameters:
    """How a plug-in says which parameter is wrong: `ParameterError`, and the older way with ValueError."""

    @staticmethod
    def read(error: ValueError) -> list[str]:
        @dataclass(frozen=True)
        class Plugin:
            size: int

            def __post_init__(self) -> None:
                raise error

        problems = document.Problems("file.yaml")
        builder = build.Builder(problems, Path(), {})
        node = document.parse("size: 3\n", problems)
        assert isinstance(node, document.Mapping)
        with pytest.raises(document.Invalid):
            builder.construct(Plugin, node, "here", {"size": 3})
        return list(problems.error().problems)

    def test_a_parameter_error_points_at_the_line_of_its_parameter(self) -> None:
        assert self.read(ParameterError("size", "must be 1, not 3")) == ["file.yaml:1: here.size: must be 1, not 3"]

    def test_a_parameter_that_is_not_in_the_file_is_named_in_the_message(self) -> None:
        assert self.read(ParameterError("other", "is missing")) == ["file.yaml:1: here: other: is missing"]

    def test_the_first_word_of_a_value_error_still_names_the_parameter_with_a_deprecation_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.warns(DeprecationWarning, match="raise autoscaler.policy_api.ParameterError"):
            assert self.read(ValueError("size: must be 1")) == ["file.yaml:1: here.size: must be 1"]
        [record] = caplog.records
        assert (record.name, record.levelname) == ("autoscaler.config", "WARNING")
        assert record.getMessage().startswith("deprecated: ")
        assert "raise autoscaler.policy_api.ParameterError(name, message) instead" in record.getMessage()

    def test_if_warnings_are_errors_the_problem_of_the_file_is_reported_all_the_same(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.read(ValueError("size: must be 1")) == ["file.yaml:1: here.size: must be 1"]
        assert "names a wrong parameter by the first word of a ValueError" in caplog.text

    def test_a_value_error_without_a_parameter_is_reported_unchanged(self) -> None:
        assert self.read(ValueError("too much in all")) == ["file.yaml:1: here: too much in all"]


@pytest.mark.parametrize(
    ("metric", "key", "message"),
    [
        ("query: 'sum(lag'", "query", "unclosed left parenthesis"),
        ("query: 'rate(lag)'", "query", "expected type matrix in call to function 'rate', got vector"),
        ("query: lag, age: 'timestamp(lag'", "age", "unclosed left parenthesis"),
        ("query: 'sum by (a) (rate(lag{b=~\"c.*\"}[5m])) > 0', age: 'timestamp(lag)'", "", ""),
    ],
)
def test_invalid_promql_gives_a_warning_if_the_parser_is_installed(
    accepted: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, metric: str, key: str, message: str
) -> None:
    text = TestShares.TEXT.replace("POLICY", "{type: target-tracking, metric: cpu, target: 1}")
    text = text.replace("query: node_cpu", metric)
    found = [one.partition(".yaml:")[2] for one in accepted(text).warnings]
    assert [one.partition(";")[0] for one in found] == (
        [f"12: clusters.demo.metrics.cpu.{key}: does not parse as PromQL: {message}"] if message else []
    )
    monkeypatch.setitem(sys.modules, "promql_parser", None)
    assert accepted(text).warnings == ()


class TestShares:
    """A share from 0 to 1 never reaches 70; for a metric that may be a percentage 70 can be right."""

    TEXT = """\
sources:
  job: &job {type: flink, url: "http://127.0.0.1:8081"}
  prom: {type: prometheus, url: "http://127.0.0.1:9090"}
  aws: {type: cloudwatch, region: eu-central-1}
clusters:
  demo:
    target: {type: advice}
    max: 4
    metrics:
      busy: {source: job, metric: busy}
      lag: {source: job, metric: lag}
      cpu: {source: prom, query: node_cpu}
      aws-cpu: {source: aws, metric: CPUUtilization, namespace: AWS/EC2}
    max_age: 10m
    policies:
      p:
        POLICY
"""

    @pytest.mark.parametrize(
        ("policy", "line"),
        [
            ("type: target-tracking\n        metric: busy\n        target: 70", "19: clusters.demo.policies.p.target"),
            (
                (
                    "type: threshold\n        up: [{metric: lag, above: 9}]\n        "
                    "down:\n        - {metric: busy, below: 70}"
                ),
                "20: clusters.demo.policies.p.down[0].below",
            ),
            (
                "type: hpa\n        metrics:\n          - {type: average_value, metric: busy, target: 70}",
                "19: clusters.demo.policies.p.metrics[0].target",
            ),
            (
                "type: aws-target-tracking\n        metric: busy\n        target: 70",
                "19: clusters.demo.policies.p.target",
            ),
            (
                (
                    "type: aws-step\n        metric: busy\n        threshold: 70\n        comparison: '>='\n        "
                    "steps: [{lower: 0, adjustment: 1}]"
                ),
                "19: clusters.demo.policies.p.threshold",
            ),
        ],
    )
    def test_a_percentage_of_a_share_is_refused(self, refused: Refused, policy: str, line: str) -> None:
        assert refused(self.TEXT.replace("POLICY", policy)) == [
            f"{line}: 70 for the metric busy, which is a share from 0 to 1; write 0.7"
        ]

    def test_a_percentage_for_the_metric_of_learned_capacity_is_refused(self, refused: Refused) -> None:
        text = self.TEXT.replace("POLICY", "{type: target-tracking, metric: cpu, target: 250}")
        assert refused(text.replace("max_age: 10m", "max_age: 10m\n    capacity: {saturation: cpu}")) == [
            "18: clusters.demo.policies.p.target: 250 for the metric cpu, which is a share from 0 to 1; write at most 1"
        ]

    @pytest.mark.parametrize(("level", "write"), [("1.2", "at most 1"), ("2", "0.02"), ("101", "at most 1")])
    def test_a_share_of_a_percentage_is_reported(self, refused: Refused, level: str, write: str) -> None:
        text = self.TEXT.replace("POLICY", f"{{type: target-tracking, metric: busy, target: {level}}}")
        (problem,) = refused(text)
        assert problem.endswith(f"p.target: {level} for the metric busy, which is a share from 0 to 1; write {write}")

    @pytest.mark.parametrize(
        ("policy", "warning"),
        [
            (
                "{type: target-tracking, metric: cpu, target: 70}",
                "70 for the metric cpu: if that is a share from 0 to 1, write 0.7",
            ),
            ("{type: target-tracking, metric: aws-cpu, target: 70}", ""),
            ("{type: target-tracking, metric: lag, target: 70}", ""),
            ("{type: target-tracking, metric: cpu, target: 700}", ""),
            ("{type: target-tracking, metric: cpu, target: 8}", ""),  # cores
            ("{type: target-tracking, metric: busy_threads, target: 20}", ""),
            ("{type: target-tracking, metric: shared_queue, target: 50}", ""),
            (
                "{type: target-tracking, metric: job_busy, target: 50}",
                "50 for the metric job_busy: if that is a share from 0 to 1, write 0.5",
            ),
            (
                "{type: target-tracking, metric: saturation, target: 1.2}",
                "1.2 for the metric saturation: if that is a share from 0 to 1, write at most 1",
            ),
            ("{type: target-tracking, metric: saturation, target: 1.2, mode: total}", ""),
            ("{type: hpa, metrics: [{type: value_per_replica, metric: saturation, target: 1.2}]}", ""),
            ("{type: hpa, metrics: [{type: value, metric: busy, target: 1.2}]}", ""),
            ("{type: target-tracking, metric: cpu, target: 0.7}", ""),
            ("{type: hpa, metrics: [{type: utilization, metric: cpu, target: 70}]}", ""),
        ],
    )
    def test_a_possible_share_gives_a_warning(self, accepted: Callable[..., Config], policy: str, warning: str) -> None:
        more = "".join(
            f"      {name}: {{source: prom, query: x}}\n"
            for name in ("busy_threads", "shared_queue", "job_busy", "saturation")
        )
        text = self.TEXT.replace("POLICY", policy).replace("    max_age", f"{more}    max_age")
        assert [one.partition(".yaml:")[2] for one in accepted(text).warnings] == (
            [f"21: clusters.demo.policies.p.target: {warning}"] if warning else []
        )
