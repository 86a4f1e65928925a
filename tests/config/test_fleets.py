"""The template of a fleet: its expressions over a member's values, and its problems with and without a member."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config import load
from autoscaler.config.fleets import assemble
from autoscaler.config.model import Config, MemberCluster
from autoscaler.ports import ConfigurationError, Member
from autoscaler.trace import profile_file

Accepted = Callable[..., Config]
Refused = Callable[..., list[str]]

FLEET = """\
sources:
  main: {type: stub-source, url: "http://127.0.0.1:9090"}
fleets:
  streaming:
    discover: {type: stub-discovery}
    name: "${namespace}/${name}"
    template:
      sources:
        own: {type: stub-source, url: "http://${labels.app}.${namespace}:8081"}
      target: {type: stub-target, name: "${name}"}
      engine: {type: stub-engine, url: "http://${labels.app}.${namespace}:8081"}
      min: 1
      max: "${annotations['autoscaler/max'] | 8}"
      metrics:
        lag: {source: main, name: "${name}"}
        busy: {source: own, name: busy}
      policies:
        calm: {type: stub-policy, within: "${annotations['autoscaler/within'] | 60s}"}
"""


def member(id: str = "prod/orders", **values: str | Mapping[str, str]) -> Member:  # noqa: A002 - the field's name
    known: dict[str, str | Mapping[str, str]] = {
        "namespace": "prod",
        "name": id.rpartition("/")[2],
        "labels": {"app": "shop"},
        "annotations": {},
        "ZONE": "a",
    }
    return Member(id, {**known, **values})


def expanded(config: Config, *members: Member) -> list[MemberCluster]:
    return [config.fleets["streaming"].template.expand(found) for found in members or (member(),)]


def problems(config: Config, found: Member) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        expanded(config, found)
    prefix = f"{config.path}:"
    assert all(problem.startswith(prefix) for problem in caught.value.problems)
    return [problem.removeprefix(prefix) for problem in caught.value.problems]


def with_max(text: str) -> str:
    """The fleet with another `max`, which is on line 13."""
    return FLEET.replace("max: \"${annotations['autoscaler/max'] | 8}\"", f"max: {text}")


def name_of(config: Config, found: Member) -> str:
    """The result of an expression in the target's name."""
    target: Any = expanded(config, found)[0].cluster.target
    name: str = target.name
    return name


def with_name(text: str) -> str:
    """The fleet with another name of the target."""
    return FLEET.replace('target: {type: stub-target, name: "${name}"}', f"target: {{type: stub-target, name: {text}}}")


# Values


def test_a_member_fills_every_scalar(accepted: Accepted) -> None:
    config = accepted(FLEET)
    (found,) = expanded(config)
    assert (found.id, found.name, found.cluster.spec.name) == ("prod/orders", "prod/orders", "prod/orders")
    engine: Any = found.cluster.engine
    assert engine.url == "http://shop.prod:8081"
    query: Any = found.cluster.metrics["lag"].query
    assert (found.cluster.metrics["lag"].source, query.name) == ("main", "orders")
    assert found.cluster.spec.limits.maximum == 8
    assert found.warnings == ()
    assert found.secrets == frozenset()


def test_sources_of_the_template_are_prefixed_with_the_name_of_the_cluster(accepted: Accepted) -> None:
    (found,) = expanded(accepted(FLEET))
    assert found.cluster.metrics["busy"].source == "prod/orders/own"
    source: Any = found.sources["prod/orders/own"]
    assert source.url == "http://shop.prod:8081"


def test_a_fleet_has_its_settings_and_defaults(accepted: Accepted) -> None:
    spec = accepted(FLEET).fleets["streaming"]
    assert (spec.name, spec.interval, spec.confirm) == ("streaming", timedelta(seconds=10), timedelta(minutes=5))
    config = accepted(FLEET.replace("    name:", "    interval: 1m\n    confirm: 1h\n    name:", 1))
    spec = config.fleets["streaming"]
    assert (spec.interval, spec.confirm) == (timedelta(minutes=1), timedelta(hours=1))


def test_a_configuration_may_have_only_fleets_or_clusters_too(accepted: Accepted, good: str) -> None:
    assert accepted(FLEET).clusters == {}
    both = accepted(good + FLEET.partition("\n")[2].partition("\n")[2])
    assert (list(both.clusters), list(both.fleets)) == (["demo"], ["streaming"])


def test_a_value_becomes_a_number_if_one_is_required(accepted: Accepted) -> None:
    annotated = member(annotations={"autoscaler/max": "12", "autoscaler/within": "5m"})
    (found,) = expanded(accepted(FLEET), annotated)
    assert found.cluster.spec.limits.maximum == 12
    policy: Any = found.cluster.spec.policies[0].policy
    assert policy.within == timedelta(minutes=5)


@pytest.mark.parametrize("value", ["8", "true", "null", "2020-01-01", "0x10", "1:30", ".inf", "~"])
def test_a_value_stays_text_if_text_is_required(accepted: Accepted, value: str) -> None:
    assert name_of(accepted(with_name('"${labels.text}"')), member(labels={"app": "a", "text": value})) == value


@pytest.mark.parametrize(
    ("written", "labels", "text"),
    [
        ("${name}", {}, "orders"),
        ("${ name }", {}, "orders"),
        ("${labels['app']}", {}, "shop"),
        ('${labels[\\"app\\"]}', {}, "shop"),
        ("${labels.app-2}", {"app-2": "b"}, "b"),
        ("${labels['a.b/c d']}", {"a.b/c d": "b"}, "b"),
        ("${labels.none | x}", {}, "x"),
        ("${labels.none|x y}", {}, "x y"),
        ("${labels.none |  x y  }", {}, "x y"),
        ("${labels.none | 'x} '}", {}, "x} "),
        ('${labels.none | \\"it\'s\\"}', {}, "it's"),
        ("${labels.none | a|b}", {}, "a|b"),
        ("${labels.none | }-", {}, "-"),
        ("${labels.none|}-", {}, "-"),
        ("${labels.none | ''}-", {}, "-"),
        ("${labels.empty | x}", {"empty": ""}, "x"),
        ("${labels.app | x}", {}, "shop"),
        ("$${name}{}$", {}, "$orders{}$"),
        ("${name}${name}", {}, "ordersorders"),
        ("${ZONE}", {}, "a"),
        ("${HOST}/${name}", {}, "h/orders"),
    ],
)
def test_expressions(accepted: Accepted, written: str, labels: Mapping[str, str], text: str) -> None:
    config = accepted(with_name(f'"{written}"'), {"HOST": "h", "ZONE": "of the environment"})
    assert name_of(config, member(labels={"app": "shop", **labels})) == text


def test_a_value_may_have_a_thousand_characters(accepted: Accepted) -> None:
    config = accepted(with_name('"${annotations.long}"'))
    assert name_of(config, member(annotations={"long": "x" * 1000})) == "x" * 1000
    (problem,) = problems(config, member(annotations={"long": "x" * 1001}))
    assert problem.endswith(".target.name: ${annotations.long} has 1,001 characters, at most 1,000 are allowed")


def test_an_empty_default_omits_an_optional_key(accepted: Accepted) -> None:
    config = accepted(FLEET + '      partitions: "${annotations.partitions | }"\n      combine: ${labels.combine|}\n')
    first, second = expanded(config, member(), member(annotations={"partitions": "12"}))
    assert (first.cluster.spec.partitions, first.cluster.spec.combine) == (None, None)
    assert second.cluster.spec.partitions == 12


def test_an_empty_default_is_not_a_number(refused: Refused) -> None:
    assert refused(with_max('"${labels.max | }"')) == [
        "13: fleets.streaming.template.max: expected a whole number, not nothing"
    ]


def test_members_without_a_time_zone_have_that_of_the_daemon(accepted: Accepted) -> None:
    daemon = "daemon: {time_zone: Europe/Berlin}\n"
    assert [found.cluster.time_zone for found in expanded(accepted(daemon + FLEET))] == ["Europe/Berlin"]
    named = FLEET.replace("      min: 1\n", "      min: 1\n      time_zone: Asia/Tokyo\n")
    assert [found.cluster.time_zone for found in expanded(accepted(daemon + named))] == ["Asia/Tokyo"]


def test_annotations_may_set_only_what_the_template_allows(accepted: Accepted) -> None:
    config = accepted(FLEET.replace("      min: 1\n", "      min: 2\n"))
    (found,) = expanded(config, member(annotations={"autoscaler/min": "0", "autoscaler/max": "3"}))
    assert (found.cluster.spec.limits.minimum, found.cluster.spec.limits.maximum) == (2, 3)


def test_anchors_and_merge_keys_are_shared_by_all_members(accepted: Accepted) -> None:
    text = FLEET.replace(
        "sources:\n  main", 'x-own: &own {type: stub-source, url: "http://${labels.app}"}\nsources:\n  main'
    ).replace('own: {type: stub-source, url: "http://${labels.app}.${namespace}:8081"}', "own: {<<: *own, timeout: 4s}")
    first, second = expanded(accepted(text), member(), member("prod/b", labels={"app": "b"}))
    one: Any = first.sources["prod/orders/own"]
    two: Any = second.sources["prod/b/own"]
    assert (one.url, one.timeout, two.url) == ("http://shop", timedelta(seconds=4), "http://b")


def test_parts_without_expressions_are_read_once(accepted: Accepted) -> None:
    first, second = expanded(accepted(FLEET + "      down: {window: 7m}\n"), member(), member("prod/b"))
    assert first.cluster.spec.down is second.cluster.spec.down
    assert first.cluster.spec.down.window == timedelta(minutes=7)
    assert first.cluster == expanded(accepted(FLEET + "      down: {window: 7m}\n"))[0].cluster


def test_keys_that_share_a_node_keep_their_own_defaults(accepted: Accepted) -> None:
    """`up` and `down` have other defaults of the same key."""
    text = FLEET + "      up: &guards {tolerance: 0.2}\n      down: *guards\n"
    (found,) = expanded(accepted(text))
    plain = expanded(accepted(FLEET))[0].cluster.spec
    assert (found.cluster.spec.up.window, found.cluster.spec.down.window) == (plain.up.window, plain.down.window)
    assert found.cluster.spec.up.tolerance == found.cluster.spec.down.tolerance == 0.2


# Invalid values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"labels": {}}, "${labels.text} has no value and no default; there are none"),
        ({"labels": {"b": "1", "a": "2"}}, "${labels.text} has no value and no default; there are: a, b"),
        ({"labels": {"text": ""}}, "${labels.text} is empty and has no default; there are: text"),
        ({"labels": "shop"}, "${labels.text}: labels has no keys"),
        ({"labels": {"text": "9" * 65_536}}, "${labels.text} has 65,536 characters, at most 1,000 are allowed"),
        ({"labels": {"text": "a\n- x"}}, "${labels.text} has the character U+000A, which is not printable"),
        ({"labels": {"text": "\x1b[2J"}}, "${labels.text} has the character U+001B, which is not printable"),
        ({"labels": {"text": "a\u202eb"}}, "${labels.text} has the character U+202E, which is not printable"),
        ({"labels": {"text": "\ud800"}}, "${labels.text} has the character U+D800, which is not printable"),
        ({"labels": {"text": 7}}, "${labels.text} is of the type int, expected a string"),
        (
            {"labels": {f"key{number:02}": "" for number in range(30)} | {"\x1b": ""}},
            (
                "${labels.text} has no value and no default; there are: key00, key01, key02, key03, key04, key05, "
                "key06, key07, key08, key09 and 20 more"
            ),
        ),
    ],
)
def test_an_unusable_value_is_a_problem_of_its_member(accepted: Accepted, values: dict[str, Any], message: str) -> None:
    text = FLEET.replace("labels.app", "namespace")
    config = accepted(text.replace("min: 1", 'partitions: "${labels.text}"'))
    assert problems(config, member(**values)) == [f"12: fleets.streaming[prod/orders].template.partitions: {message}"]
    assert expanded(config, member(labels={"text": "3"}))[0].cluster.spec.partitions == 3


def test_a_variable_with_keys_needs_a_key(accepted: Accepted) -> None:
    found = problems(accepted(with_name('"${labels}"')), member())
    assert found == [
        (
            "10: fleets.streaming[prod/orders].template.target.name: ${labels}: labels has keys; "
            "write ${labels['KEY']}; there are: app"
        )
    ]


def test_a_variable_that_the_discovery_omitted_is_a_problem_of_the_member(accepted: Accepted) -> None:
    values = {key: value for key, value in member().values.items() if key != "namespace"}
    found = problems(accepted(FLEET), Member("x", values))
    assert found[0] == (
        "6: fleets.streaming[x].name: ${namespace} has no value and no default; "
        "there are: ZONE, annotations, labels, name"
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("eight", "expected a whole number, not a string"),
        ("{a: b}", "expected a whole number, not a string"),
        ("- x", "expected a whole number, not a string"),
        ("8.5", "expected a whole number, not the number 8.5"),
        ("0x10", "expected a whole number, not 0x10, which YAML reads as a number written in an old way"),
        ("true", "expected a whole number, not true"),
        ("null", "expected a whole number, not nothing"),
        ("*flink", "expected a whole number, not a string"),
        ("!!int 8", "expected a whole number, not a string"),
        ("-3", "must be 1 or more"),
        ("100001", "must be at most 100,000, not 100001"),
        ("9" * 41, "expected a whole number, not a number of more than 18 digits"),
    ],
)
def test_a_value_of_another_type_is_a_problem_at_its_key(accepted: Accepted, value: str, problem: str) -> None:
    (found,) = problems(accepted(FLEET), member(annotations={"autoscaler/max": value}))
    assert found.startswith(f"13: fleets.streaming[prod/orders].template.max: {problem}")


@pytest.mark.parametrize(
    "value",
    [
        "${API_TOKEN}",
        "${name}",
        "${labels.app | x}",
        "{a: b}",
        "[a, b]",
        "- x",
        "*anchor",
        "<script>alert(1)</script>",
        "\"quoted\" and 'quoted'",
        "a: b # no comment",
        "%s {} {0}",
    ],
)
def test_a_value_is_inserted_unchanged(accepted: Accepted, value: str) -> None:
    config = accepted(with_name('"<${labels.text}>"'), {"API_TOKEN": "t0p-secret"})
    found = member(labels={"app": "a", "text": value})
    assert name_of(config, found) == f"<{value}>"
    assert name_of(accepted(with_name('"${labels.text}"')), found) == value


def test_all_problems_of_a_member_are_reported_together(accepted: Accepted) -> None:
    found = problems(accepted(FLEET), member(labels={}, annotations={"autoscaler/max": "x", "autoscaler/within": "9"}))
    assert [problem.partition(": ")[0] for problem in found] == ["9", "11", "13", "18"]
    where = "18: fleets.streaming[prod/orders].template.policies.calm.within"
    assert found[3] == f"{where}: 9 has no unit; write it like 9s, 5m, 1h30m or 500ms"


def test_settings_are_checked_together_for_each_member(accepted: Accepted) -> None:
    config = accepted(FLEET.replace("min: 1", "min: 4"))
    assert expanded(config)[0].cluster.spec.limits.minimum == 4
    assert problems(config, member(annotations={"autoscaler/max": "3"})) == [
        "12: fleets.streaming[prod/orders].template.min: must not be above max (3), not 4"
    ]


def test_a_member_that_its_discovery_could_not_read_has_that_problem(accepted: Accepted) -> None:
    found = Member("a.yaml", {"name": "a"}, "jobs/a.yaml:3: (file): not valid YAML")
    assert problems(accepted(FLEET), found) == ["4: fleets.streaming[a.yaml]: jobs/a.yaml:3: (file): not valid YAML"]
    found = Member("a.yaml", {"name": "a"}, "\x1b[2Jjobs/\n\udcff.yaml")
    assert problems(accepted(FLEET), found) == ["4: fleets.streaming[a.yaml]: \ufffd[2Jjobs/ \ufffd.yaml"]


@pytest.mark.parametrize(
    ("id", "shown"),
    [
        ("arn:aws:1", '"arn:aws:1"'),
        ("<b>", '"<b>"'),
        ("a]b", '"a]b"'),
        ('say "x"', '"say \\"x\\""'),
        ("é", "é"),
        ("x" * 90, json.dumps("x" * 60)),
    ],
)
def test_an_id_is_shown_in_the_path(accepted: Accepted, id: str, shown: str) -> None:  # noqa: A002 - the field's name
    found = problems(accepted(FLEET), member(id, name="b", annotations={"autoscaler/max": "x"}))
    assert found == [f"13: fleets.streaming[{shown}].template.max: expected a whole number, not a string"]


@pytest.mark.parametrize(
    ("id", "problem"),
    [
        ("a\nb", "its id has the character U+000A, which is not printable"),
        ("x" * 65_536, "its id has 65,536 characters, at most 1,000 are allowed"),
    ],
)
def test_an_id_that_cannot_be_shown_is_a_problem(accepted: Accepted, id: str, problem: str) -> None:  # noqa: A002
    (found,) = problems(accepted(FLEET), member(id, name="b"))
    assert found.endswith(problem)
    assert "\n" not in found


# Names


@pytest.mark.parametrize("name", ["a", "a.b_c-d", "x" * 195, "0", "_a", "a/b", "/".join("123456789")])
def test_a_name_of_a_member_may_have_several_parts(accepted: Accepted, name: str) -> None:
    assert expanded(accepted(FLEET), member(name=name))[0].name == f"prod/{name}"


def test_the_longest_name_is_limited_by_the_length_of_file_names(accepted: Accepted, tmp_path: Path) -> None:
    (found,) = expanded(accepted(FLEET), member(name="/".join(["x" * 20] * 8 + ["y" * 27])))
    assert len(found.name) == 200
    (tmp_path / f".{profile_file.file_name(found.name)}.part").touch()


@pytest.mark.parametrize(
    "name", ["x" * 196, "a b", "-a", ".a", "..", "a//b", "/a", "a/", "a/../b", "<b>", "é", "a?b", "a/" * 9 + "a"]
)
def test_an_invalid_name_is_a_problem_of_its_member(accepted: Accepted, name: str) -> None:
    (found,) = problems(accepted(FLEET), member("id", name=name))
    assert found.startswith("6: fleets.streaming[id].name: 'prod/")
    assert "a name is 1 to 200 letters" in found


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("jobs", "every member would have this name; write an expression such as ${name}"),
        ("${HOST}", "every member would have this name; write an expression such as ${name}"),
        ("job ${name}", "'job member', for instance, cannot be a name: a name is 1 to 200 letters"),
        ("/${name}", "'/member', for instance, cannot be a name"),
        ("${name | a b}", "'a b' cannot be a name"),
        ("${nam}", "unknown variable nam in ${nam}; variables: name, namespace, labels, annotations, ZONE; did you"),
    ],
)
def test_a_name_that_is_invalid_for_every_member_is_refused(refused: Refused, name: str, problem: str) -> None:
    (found,) = refused(FLEET.replace('"${namespace}/${name}"', f'"{name}"'), {"HOST": "h"})
    assert found.startswith(f"6: fleets.streaming.name: {problem}")


# The template without members


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [
        ("min: 1", "mn: 1", ["12: fleets.streaming.template.mn: unknown key; did you mean 'min'?"]),
        (
            'stub-target, name: "${name}"',
            'stub-target, words: "${name}"',
            ["10: fleets.streaming.template.target.words: expected a list, not a string"],
        ),
        ("min: 1", "min: x", ["12: fleets.streaming.template.min: expected a whole number, not a string"]),
        ("| 8}", "| 0}", ["13: fleets.streaming.template.max: must be 1 or more, not 0"]),
        ("| 8}", "| x}", ["13: fleets.streaming.template.max: expected a whole number, not a string"]),
        (
            'labels.app}.${namespace}:8081"}\n      target',
            'labels.app"}\n      target',
            ["9: fleets.streaming.template.sources.own.url: ${labels.app is not an expression; write ${name}"],
        ),
        ('${name}"}\n      engine', '${nmae}"}\n      engine', [
            ("10: fleets.streaming.template.target.name: unknown variable nmae in ${nmae}; variables: name, namespace, "
            "labels, annotations, ZONE; did you mean 'name'?")
        ]),
        ('${name}"}\n      engine', '${HOST}"}\n      engine', [
            "10: fleets.streaming.template.target.name: the environment variable HOST is not set; set it"
        ]),
        ('${name}"}\n      engine', '${HOST | x}"}\n      engine', [
            ("10: fleets.streaming.template.target.name: HOST is an environment variable: write ${HOST}, without a key "
            "or a default")
        ]),
        ('${name}"}\n      engine', "${labels['x'}\"}\n      engine", [
            "10: fleets.streaming.template.target.name: ${labels['x'} is not an expression; write ${name}"
        ]),
        ('${name}"}\n      engine', '${labels.a.b}"}\n      engine', [
            "10: fleets.streaming.template.target.name: ${labels.a.b} is not an expression; write ${name}"
        ]),
        ('${name}"}\n      engine', '${name | ${namespace}}"}\n      engine', [
            "10: fleets.streaming.template.target.name: ${name | ${namespace} is not an expression; write ${name}"
        ]),
        ('${name}"}\n      engine', "${name | 'a'b}\"}\n      engine", [
            "10: fleets.streaming.template.target.name: ${name | 'a'b} is not an expression; write ${name}"
        ]),
        ("stub-target", "stub-taret", ["10: fleets.streaming.template.target.type: unknown target 'stub-taret'"]),
        ("stub-target", '"${labels.type}"', [
            ("10: fleets.streaming.template.target.type: all members of a fleet have the same type of plug-in; "
            "write its name")
        ]),
        ("source: own", "source: ow", [
            "16: fleets.streaming.template.metrics.busy.source: unknown source 'ow'; sources: own, main"
        ]),
        ("own: {type: stub-source", "main: {type: stub-source", [
            "9: fleets.streaming.template.sources.main: the file has a source of this name; give this one another",
            "16: fleets.streaming.template.metrics.busy.source: unknown source 'own'; sources: main",
        ]),
        ("own: {type: stub-source", "own: {type: stub-sorce", [
            "9: fleets.streaming.template.sources.own.type: unknown source 'stub-sorce'"
        ]),
        ("        own:", "        -own:", [
            "9: fleets.streaming.template.sources.-own: a name is 1 to 63 letters",
                "16: fleets.streaming.template.metrics.busy.source: unknown source 'own'; sources: -own, main; did you",
        ]),
        ('        own: {type: stub-source, url: "http://${labels.app}.${namespace}:8081"}', "        - a", [
            "8: fleets.streaming.template.sources: expected a mapping",
                "16: fleets.streaming.template.metrics.busy.source: unknown source 'own'; sources: main",
        ]),
        ('within: "', 'withn: "', [
            "18: fleets.streaming.template.policies.calm.withn: unknown key; did you mean 'within'?",
            "18: fleets.streaming.template.policies.calm.within: missing; expected a duration",
        ]),
        ("      policies:\n        calm:", "      policy:\n        calm:", [
            "7: fleets.streaming.template.policies: missing; expected a mapping",
            "17: fleets.streaming.template.policy: unknown key; did you mean 'policies'?",
        ]),
        ('metrics:\n        lag: {source: main, name: "${name}"}\n        busy: {source: own, name: busy}',
         'metrics: "${labels.metrics}"', [
            "14: fleets.streaming.template.metrics: expected a mapping (key: value), not a string",
            "16: fleets.streaming.template.policies.calm: the policy reads the metric 'lag', which the cluster does not"
        ]),
        ("discover: {type: stub-discovery}", "discover: {type: stub-discover}", [
            "5: fleets.streaming.discover.type: unknown discovery 'stub-discover'; installed: "
        ]),
        ("discover: {type: stub-discovery}", "discover: {type: nameless-discovery}", [
            "5: fleets.streaming.discover.type: the discovery 'nameless-discovery' of autoscaler-stub-plugins"
        ]),
        ("discover: {type: stub-discovery}", "discover: {type: stub-discovery, selector: bad}", [
            "5: fleets.streaming.discover.selector: must not be bad"
        ]),
        ("discover: {type: stub-discovery}", 'discover: {type: stub-discovery, selector: "${name}"}', [
            "5: fleets.streaming.discover.selector: the environment variable name is not set"
        ]),
        ("    discover:", "    interval: 1ms\n    discover:", [
            "5: fleets.streaming.interval: must be at least 1s"
        ]),
        ("    discover:", "    every: 1s\n    discover:", [
            "5: fleets.streaming.every: unknown key; known here: discover, name, template, interval, confirm"
        ]),
        ("  streaming:", "  stream ing:", ['4: fleets."stream ing": a name is 1 to 63 letters']),
    ],
)  # fmt: skip
def test_errors_for_every_member_are_found_without_one(
    refused: Refused, old: str, new: str, problems: list[str]
) -> None:
    assert old in FLEET
    found = refused(FLEET.replace(old, new, 1))
    assert len(found) == len(problems), found
    for problem, beginning in zip(found, problems, strict=True):
        assert problem.startswith(beginning)


@pytest.mark.parametrize(
    ("fleet", "problems"),
    [
        ("", ["2: fleets.a: expected a mapping (key: value), not nothing"]),
        ("{discover: {type: stub-discovery}, name: '${name}'}", [
            "2: fleets.a.template: missing; expected a mapping"
        ]),
        ("{}", [
            "2: fleets.a.discover: missing; expected a discovery: a mapping with `type` and its parameters",
            "2: fleets.a.name: missing; expected a string",
            "2: fleets.a.template: missing; expected a mapping",
        ]),
        ("{discover: {type: stub-discovery}, name: '${name}', template: 3}", [
            "2: fleets.a.template: expected a mapping (key: value), not the number 3"
        ]),
        ("{discover: {type: stub-discovery}, name: [a], template: {}}", [
            "2: fleets.a.name: expected a string, not a list",
            "2: fleets.a.template.max: missing; expected a whole number",
            "2: fleets.a.template.policies: missing; expected a mapping",
            "2: fleets.a.template.target: missing; expected a target: a mapping with `type` and its parameters",
        ]),
    ],
)  # fmt: skip
def test_a_fleet_requires_all_its_parts(refused: Refused, fleet: str, problems: list[str]) -> None:
    assert sorted(refused(f"fleets:\n  a: {fleet}\n")) == problems


def test_a_file_without_clusters_and_fleets_is_refused(refused: Refused) -> None:
    assert refused("sources: {}\n") == ["1: clusters: missing; expected a mapping, here or in fleets"]
    assert refused("clusters: {}\n" + FLEET) == ["1: clusters: at least one cluster is needed"]


@pytest.mark.parametrize(
    "text",
    [
        with_max('"${annotations.max}"'),
        with_max("${annotations.max}"),
        FLEET.replace("min: 1", "min: 5").replace(" | 8}", "}"),
        FLEET.replace("min: 1", 'interval: "${labels.interval}"\n      timeout: "${labels.timeout}"'),
        FLEET.replace("stub-policy,", 'stub-policy, metric: "${labels.metric}",'),
        FLEET.replace("source: own", 'source: "${labels.source}"'),
        FLEET.replace(
            "{type: stub-target", '{type: stub-target, colour: "${labels.colour}", either: "${labels.either}"'
        ),
        FLEET.replace(
            "{type: stub-target", '{type: stub-target, level: "${labels.a}", points: [{x: "${labels.x}", y: 9}]'
        ),
        FLEET.replace("{type: stub-target", '{type: stub-target, directory: "${labels.a}/x", grace: "${labels.x}"'),
        FLEET.replace("own: {type: stub-source,", 'own: {type: stub-source, token: "${annotations.token}",'),
    ],
)
def test_settings_that_depend_on_the_member_are_not_checked_without_one(accepted: Accepted, text: str) -> None:
    assert accepted(text).warnings == ()


def test_a_fleet_of_an_included_file_has_the_positions_of_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("include: conf.d\n")
    (tmp_path / "conf.d").mkdir()
    included = tmp_path / "conf.d" / "team.yaml"
    included.write_text(FLEET)
    config = load(tmp_path / "a.yaml", {})
    with pytest.raises(ConfigurationError) as caught:
        expanded(config, member(annotations={"autoscaler/max": "x"}))
    assert caught.value.problems == (
        f"{included}:13: fleets.streaming[prod/orders].template.max: expected a whole number, not a string",
    )
    template = config.fleets["streaming"].template
    assert template.problem("b", "is bad") == f"{included}:6: fleets.streaming[b].name: is bad"
    assert template.problem("b", "is bad", "target") == f"{included}:10: fleets.streaming[b].template.target: is bad"
    included.write_text(FLEET.replace("min: 1", "min: x"))
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "a.yaml", {})
    problem = f"{included}:12: fleets.streaming.template.min: expected a whole number, not a string"
    assert caught.value.problems == (problem,)


def test_a_fleet_belongs_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("include: b.yaml\n" + FLEET)
    (tmp_path / "b.yaml").write_text(FLEET.partition("fleets:")[1] + FLEET.partition("fleets:")[2])
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "a.yaml", {})
    assert caught.value.problems == (f"{tmp_path}/b.yaml:2: fleets.streaming: is already in {tmp_path}/a.yaml:5",)


# Secrets and warnings


SECRET = FLEET.replace("own: {type: stub-source,", 'own: {type: stub-source, token: "${API_TOKEN}",')


def test_secrets_of_the_environment_are_masked_in_the_problems_of_members(accepted: Accepted) -> None:
    config = accepted(SECRET, {"API_TOKEN": "t0p-secret"})
    assert config.secrets == {"t0p-secret"}
    found = member("x", name="t0p-secret x", labels={"app": "a"})
    (problem,) = problems(config, found)
    assert "t0p-secret" not in problem
    assert "'prod/*** x' cannot be a name" in problem
    assert "t0p-secret" not in repr(config)


def test_the_value_of_a_member_is_a_secret_if_the_field_is_one(accepted: Accepted) -> None:
    config = accepted(SECRET.replace("${API_TOKEN}", "${annotations.token}"))
    (found,) = expanded(config, member(annotations={"token": "hunter2"}))
    assert found.secrets == {"hunter2"}
    assert "hunter2" not in repr(found)
    problem = problems(config, member("x", name="hunter2 ", annotations={"token": "hunter2"}))
    assert "hunter2" not in "".join(problem)


def test_a_default_is_a_secret_if_the_field_is_one(accepted: Accepted) -> None:
    config = accepted(SECRET.replace("${API_TOKEN}", "${annotations.token | hunter2}"))
    assert config.secrets == {"hunter2"}
    (problem,) = problems(config, member("x", name="hunter2 "))
    assert "'prod/*** ' cannot be a name" in problem


def test_a_default_is_not_masked_if_only_its_key_has_the_name_of_a_secret(accepted: Accepted) -> None:
    config = accepted(with_name('"${name}", labels: {auth: "${labels.auth | basic}", token: "${labels.token | none}"}'))
    assert config.secrets == set()
    (found,) = expanded(config, member(labels={"app": "a", "token": "hunter2"}))
    assert found.secrets == {"hunter2"}


def test_a_plug_in_that_quotes_a_secret_does_not_show_it(accepted: Accepted) -> None:
    config = accepted(SECRET.replace("${API_TOKEN}", "${annotations.token}"))
    (problem,) = problems(config, member(annotations={"token": "refused"}))
    assert problem == "9: fleets.streaming[prod/orders].template.sources.own.token: *** does not fit the url"


def test_secrets_in_clear_text_give_one_warning_for_all_members(accepted: Accepted) -> None:
    config = accepted(SECRET.replace("${API_TOKEN}", "t0p-secret"))
    assert [warning.partition(": a secret")[0] for warning in config.warnings] == [
        f"{config.path}:9: fleets.streaming.template.sources.own.token",
    ]
    (found,) = expanded(config)
    assert found.warnings == ()


def test_a_warning_that_depends_on_the_member_is_the_members_own(accepted: Accepted) -> None:
    config = accepted(FLEET.replace("min: 1", 'timeout: "${annotations.timeout | 5s}"'))
    assert config.warnings == ()
    (found,) = expanded(config, member(annotations={"timeout": "1s"}))
    assert found.warnings
    assert all(f"{config.path}:12: fleets.streaming[prod/orders].template.timeout: " in one for one in found.warnings)
    assert any("the timeout of the source own (3s) is above that of the cluster (1s)" in one for one in found.warnings)


# All members together


def test_static_clusters_and_members_form_one_configuration(accepted: Accepted, good: str) -> None:
    config = accepted(good + FLEET.partition("\n")[2].partition("\n")[2])
    found = expanded(config, member(), member("prod/b"))
    whole = assemble(config, {"streaming": found})
    assert list(whole.config.clusters) == ["demo", "prod/b", "prod/orders"]
    assert list(whole.config.sources) == ["main", "prod/b/own", "prod/orders/own"]
    assert whole.members == {"prod/b": ("streaming", "prod/b"), "prod/orders": ("streaming", "prod/orders")}
    assert whole.refused == {"streaming": {}}
    assert whole.config.daemon == config.daemon
    assert list(config.clusters) == ["demo"]


def test_secrets_and_warnings_of_members_are_those_of_the_configuration(accepted: Accepted) -> None:
    text = SECRET.replace("${API_TOKEN}", "${annotations.token}").replace("min: 1", 'timeout: "${labels.t | 5s}"')
    config = accepted(text)
    found = expanded(config, member(annotations={"token": "hunter2"}, labels={"app": "a", "t": "1s"}))
    whole = assemble(config, {"streaming": found}).config
    assert whole.secrets == {"hunter2"}
    assert whole.warnings == found[0].warnings
    assert len(whole.warnings) == 2


TWO = FLEET + FLEET.partition("fleets:\n")[2].replace("streaming", "other")


def test_of_two_members_with_one_name_the_first_keeps_it(accepted: Accepted) -> None:
    config = accepted(TWO.replace("${namespace}/${name}", "${labels.app}"))
    first, second = expanded(config, member("b"), member("a"))
    third = config.fleets["other"].template.expand(member("0"))
    path = config.path
    whole = assemble(config, {"streaming": [first, second], "other": [third]})
    assert whole.members == {"shop": ("streaming", "a")}
    assert whole.refused == {
        "streaming": {"b": f"{path}:6: fleets.streaming[b].name: the member 'a' has the name 'shop' already"},
        "other": {
            "0": f"{path}:21: fleets.other[0].name: the member 'a' of the fleet streaming has the name 'shop' already"
        },
    }


def test_an_existing_member_keeps_its_name_and_its_target(accepted: Accepted) -> None:
    config = accepted(FLEET.replace("${namespace}/${name}", "${labels.app}"))
    first, second = expanded(config, member("a"), member("b"))
    whole = assemble(config, {"streaming": [first, second]}, {"shop": ("streaming", "b")})
    assert whole.members == {"shop": ("streaming", "b")}
    assert list(whole.refused["streaming"]) == ["a"]
    config = accepted(FLEET)
    first, second = expanded(config, member("a", name="same"), member("b", name="same", namespace="test"))
    whole = assemble(config, {"streaming": [first, second]}, {"test/same": ("streaming", "b")})
    assert whole.members == {"test/same": ("streaming", "b")}
    assert whole.refused["streaming"] == {
        "a": f"{config.path}:10: fleets.streaming[a].template.target: cluster 'test/same' has the same target: "
        "each would undo the changes of the other; give each its own"
    }


def test_a_cluster_of_the_file_keeps_its_name_and_its_target(accepted: Accepted, good: str) -> None:
    fleet = FLEET.partition("\n")[2].partition("\n")[2].replace("${namespace}/${name}", "${name}")
    config = accepted(good + fleet)
    (found,) = expanded(config, member("demo"))
    whole = assemble(config, {"streaming": [found]}, {"demo": ("streaming", "demo")})
    line = good.count("\n") + 4
    assert whole.members == {}
    assert whole.refused == {
        "streaming": {
            "demo": f"{config.path}:{line}: fleets.streaming[demo].name: 'demo' is the name of a cluster in the file"
        }
    }
    (found,) = expanded(config, member("stub"))  # the default of the target's name
    assert (
        assemble(config, {"streaming": [found]})
        .refused["streaming"]["stub"]
        .endswith(
            "template.target: cluster 'demo' has the same target: each would undo the changes of the other; "
            "give each its own"
        )
    )


def test_a_refused_member_occupies_neither_name_nor_target(accepted: Accepted) -> None:
    config = accepted(FLEET)
    a, b, c = expanded(
        config,
        member("a", name="x"),
        member("b", name="x", namespace="test"),  # the target of a, and a name that c has too
        member("c", name="y", namespace="test"),
    )
    whole = assemble(config, {"streaming": [a, b, c]})
    assert list(whole.members) == ["prod/x", "test/y"]
    assert list(whole.refused["streaming"]) == ["b"]


def test_a_target_that_cannot_be_compared_is_a_problem_of_its_member(accepted: Accepted) -> None:
    config = accepted(FLEET.replace("type: stub-target", "type: failing-subject"))
    found = expanded(config, member("a"), member("b"))
    assert list(assemble(config, {"streaming": found}).members) == ["prod/a", "prod/b"]
    (problem,) = problems(config, member("unknown"))
    assert problem == "10: fleets.streaming[unknown].template.target: FailingSubject failed: KeyError: 'oops'"


def test_a_plug_in_that_cannot_be_hashed_is_a_problem_of_its_member(accepted: Accepted) -> None:
    config = accepted(FLEET.replace("type: stub-engine", "type: unhashable-engine"))
    expanded(config)
    (problem,) = problems(config, member(labels={"app": "unknown"}))
    assert problem == "11: fleets.streaming[prod/orders].template.engine: UnhashableEngine failed: KeyError: 'oops'"


def test_a_member_takes_milliseconds_and_ten_thousand_are_assembled_in_a_second_of_processor_time(
    accepted: Accepted,
) -> None:
    """0.5 ms and 0.1 s on a quiet machine. The target has a mapping, and cannot be hashed."""
    config = accepted(FLEET)
    began = time.process_time()
    found = expanded(config, *(member(f"prod/m{number}") for number in range(500)))
    assert time.process_time() - began < 2.0
    many = [
        replace(
            one,
            id=f"{one.id}-{copy}",
            name=f"{one.name}-{copy}",
            cluster=replace(one.cluster, target=replace(one.cluster.target, name=f"{one.name}-{copy}")),  # type: ignore[type-var]
        )
        for one in found
        for copy in range(20)
    ]
    began = time.process_time()
    whole = assemble(config, {"streaming": many}, {"prod/m9-9": ("streaming", "prod/m9-9")})
    assert time.process_time() - began < 1.0
    assert len(whole.config.clusters) == len(whole.members) == 10_000
