"""A valid file gives the configured values, and the defaults are those of the core."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config import load
from autoscaler.config.model import Config, DaemonSpec, LogFormat
from autoscaler.core.model import Behaviour, ClusterSpec, Rate, RateKind, Select
from autoscaler.ports import ConfigurationError, Secret

Accepted = Callable[..., Config]
Refused = Callable[..., list[str]]


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def test_omitted_settings_have_the_defaults_of_the_core(accepted: Accepted, good: str, tmp_path: Path) -> None:
    config = accepted(good)
    assert config.daemon == DaemonSpec(directory=tmp_path / "autoscaler-state")
    cluster = config.clusters["demo"]
    assert (cluster.interval, cluster.timeout) == (seconds(15), seconds(10))
    assert cluster.engine is None
    bare = ClusterSpec(
        name="demo",
        limits=cluster.spec.limits,
        policies=cluster.spec.policies,
        metrics=("lag",),
        interval=cluster.interval,
    )
    assert cluster.spec == bare


def test_every_setting_of_a_cluster_is_read(accepted: Accepted, good: str) -> None:
    config = accepted(
        good.replace("interval: 15s", "interval: 6s")
        + """\
    engine: {type: stub-engine, url: "http://engine:1"}
    slots_per_replica: 2
    partitions: 12
    up: {window: 5s, tolerance: 0.2, cooldown: 1m, select: min, rates: [{kind: percent, value: 50, period: 90s}]}
    down: {tolerance: 0.1}
    settle: {ready: 2m, short: 1, lag: lag}
    capacity: {per_replica: 50}
    max_age: 40s
    max_ahead: 500ms
    lookback: 1h30m
"""
    )
    cluster = config.clusters["demo"]
    spec = cluster.spec
    assert (cluster.interval, cluster.timeout, spec.interval) == (seconds(6), seconds(4), seconds(6))
    assert fields_of(cluster.engine) == {"url": "http://engine:1"}
    assert (spec.engine, spec.slots_per_replica, spec.partitions) == (True, 2, 12)
    rate = Rate(RateKind.PERCENT, 50.0, seconds(90))
    assert spec.up == Behaviour(seconds(5), 0.2, seconds(60), Select.MIN, (rate,))
    assert (spec.settle.ready, spec.settle.short, spec.capacity.per_replica) == (seconds(120), 1.0, 50.0)
    assert (spec.max_age, spec.max_ahead, spec.lookback) == (seconds(40), seconds(0.5), seconds(5400))


def test_setting_one_guard_of_a_direction_keeps_the_defaults_of_the_others(accepted: Accepted, good: str) -> None:
    spec = accepted(good + "    down: {tolerance: 0.1}\n").clusters["demo"].spec
    assert spec.down == Behaviour(window=timedelta(minutes=5), tolerance=0.1)


def test_the_daemon_section_is_read(accepted: Accepted, good: str, tmp_path: Path) -> None:
    text = "daemon: {directory: var, listen: '0.0.0.0:0', log: json, decisions: 7, history: 1d}\n" + good
    assert accepted(text).daemon == DaemonSpec(
        directory=tmp_path / "var", listen="0.0.0.0:0", log=LogFormat.JSON, decisions=7, history=timedelta(days=1)
    )


def test_parameters_of_every_type_are_read(accepted: Accepted, good: str, tmp_path: Path) -> None:
    config = accepted(
        good.replace(
            "    target: {type: stub-target}\n",
            """\
    target:
      type: stub-target
      directory: a/b
      count: -3
      share: 2
      loud: true
      name: "x: y"
      grace: 0s
      colour: green
      level: 3
      points: [{x: 1}, {x: 2, y: -.5}]
      pair: [b, 2]
      words: [one, two]
      either: text
      labels: {a: b}
      origin: {x: 9}
""",
        )
    )
    values = fields_of(config.clusters["demo"].target)
    points = [fields_of(point) for point in values.pop("points")]
    assert points == [{"x": 1.0, "y": 0.0}, {"x": 2.0, "y": -0.5}]
    assert fields_of(values.pop("origin")) == {"x": 9.0, "y": 2.0}  # y is that of the default origin
    assert isinstance(values["share"], float)
    assert values == {
        "directory": tmp_path / "a" / "b",
        "count": -3,
        "share": 2.0,
        "loud": True,
        "name": "x: y",
        "grace": timedelta(0),
        "colour": "green",
        "level": 3,
        "pair": ("b", 2),
        "words": ("one", "two"),
        "either": "text",
        "labels": {"a": "b"},
    }


@pytest.mark.parametrize(("written", "value"), [("2", 2.0), ("two", "two")])
def test_a_union_takes_the_first_type_that_fits(accepted: Accepted, good: str, written: str, value: object) -> None:
    target = (
        accepted(good.replace("type: stub-target", f"type: stub-target, either: {written}")).clusters["demo"].target
    )
    assert fields_of(target)["either"] == value


def test_absolute_paths_and_home_are_kept(accepted: Accepted, good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert accepted("daemon: {directory: /var/x}\n" + good).daemon.directory == Path("/var/x")
    assert accepted("daemon: {directory: ~/x}\n" + good).daemon.directory == Path("/home/somebody/x")


def test_paths_are_relative_to_the_file_and_absolute_afterwards(
    good: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("etc").mkdir()
    Path("etc/a.yaml").write_text(good)
    assert load(Path("etc/a.yaml"), {}).daemon.directory == tmp_path / "etc" / "autoscaler-state"


def test_the_timeout_follows_from_the_interval(accepted: Accepted, good: str) -> None:
    for interval, timeout in (("15s", 10), ("1m", 10), ("3s", 2), ("300ms", 0.2)):
        cluster = accepted(good.replace("interval: 15s", f"interval: {interval}")).clusters["demo"]
        assert cluster.timeout == seconds(timeout)


def test_the_lookback_is_raised_to_the_largest_of_the_policies(accepted: Accepted, good: str) -> None:
    def lookback(within: str, extra: str = "") -> timedelta:
        return accepted(good.replace("within: 60s", f"within: {within}") + extra).clusters["demo"].spec.lookback

    assert lookback("60s") == timedelta(minutes=10)
    assert lookback("1h") == timedelta(hours=2)
    assert lookback("1h", "    lookback: 1m\n") == timedelta(hours=2)


def test_one_description_serves_as_source_and_engine_by_alias(accepted: Accepted, good: str) -> None:
    text = good.replace("clusters:\n", "x-server: &server {url: 'http://one:1'}\nclusters:\n")
    text = text.replace("    min: 1\n", "    engine: {type: stub-engine, <<: *server}\n    min: 1\n")
    assert fields_of(accepted(text).clusters["demo"].engine) == {"url": "http://one:1"}


def test_equal_plug_ins_are_equal(accepted: Accepted, good: str) -> None:
    second = good.split("clusters:\n")[1].replace("demo:", "other:")
    config = accepted((good + second).replace("type: stub-target", "type: advice, size: 3"))
    assert config.clusters["demo"].target == config.clusters["other"].target


def test_a_timeout_above_that_of_the_cluster_gives_a_warning(accepted: Accepted, good: str, tmp_path: Path) -> None:
    assert accepted(good).warnings == ()
    config = accepted(good.replace("interval: 15s", "interval: 15s\n    timeout: 2s"))
    assert config.warnings == (
        (
            f"{tmp_path}/autoscaler.yaml:9: clusters.demo.timeout: the timeout of the source main (3s) is above "
            "that of the cluster (2s): the cluster stops waiting before the source main can report what is wrong"
        ),
    )
    config = accepted(good.replace("interval: 15s", "interval: 3s"))
    (warning,) = config.warnings
    assert f"{tmp_path}/autoscaler.yaml:4: clusters.demo: the timeout of the source main (3s)" in warning


def test_secrets_come_from_the_environment(accepted: Accepted, good: str) -> None:
    text = good.replace("{type: stub-source,", "{type: stub-source, token: 'Bearer ${A}-${B_2}', headers: {k: '${A}'},")
    source = accepted(text, {"A": "first", "B_2": "second"}).sources["main"]
    values = fields_of(source)
    assert values["token"] == "Bearer first-second"
    assert isinstance(values["token"], Secret)
    assert values["headers"] == {"k": "first"}
    assert "first" not in repr(source)


def test_variables_may_stand_for_values_of_every_type(accepted: Accepted, good: str, tmp_path: Path) -> None:
    target = "{type: '${KIND}', count: '${N}', share: '${SHARE}', loud: '${YES}', name: '${N}', directory: 'a-${N}',"
    text = (
        good.replace("{type: stub-target}", target + " colour: '${COLOUR}', points: [{x: '${N}'}], either: '${N}'}")
        .replace("max: 4", "max: ${N}\n    settle: {lag: '${METRIC}'}")
        .replace("15s", "${SECONDS}s")
        .replace("source: main", "source: '${SOURCE}'")
    )
    environ = {"N": "7", "SHARE": "0.5", "YES": "true", "COLOUR": "green", "METRIC": "lag", "SECONDS": "20"}
    cluster = accepted(text, {**environ, "SOURCE": "main", "KIND": "stub-target"}).clusters["demo"]
    assert (cluster.spec.limits.maximum, cluster.interval, cluster.spec.settle.lag) == (7, timedelta(seconds=20), "lag")
    assert cluster.metrics["lag"].source == "main"
    values = fields_of(cluster.target)
    assert [values[name] for name in ("count", "share", "loud", "name", "either")] == [7, 0.5, True, "7", 7]
    assert (values["directory"], values["colour"]) == (tmp_path / "a-7", "green")


def test_without_connecting_neither_secrets_nor_other_variables_are_needed(good: str, tmp_path: Path) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text(good.replace("{type: stub-source,", "{type: stub-source, token: '${NO_SUCH}',"))
    assert load(path, {}, offline=True).sources
    path.write_text(good.replace("max: 4", "max: ${NO_SUCH}"))
    with pytest.raises(ConfigurationError, match=r"NO_SUCH is not set; set it .* \(only secrets may be unset"):
        load(path, {}, offline=True)
    path.write_text(good.replace("max: 4", "max: ${MAX_TOKENS}"))  # nothing is used for a number
    with pytest.raises(ConfigurationError, match="MAX_TOKENS is not set"):
        load(path, {}, offline=True)


def test_the_password_of_the_database_is_a_secret_by_itself_and_in_its_url(good: str, tmp_path: Path) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text(f"{good}\ndaemon:\n  state: ${{DATABASE}}\n")
    config = load(path, {"DATABASE": "postgresql://ann:p%40ss@host/db"})
    assert config.daemon.state == "postgresql://ann:p%40ss@host/db"
    assert config.secrets == {"postgresql://ann:p%40ss@host/db", "p%40ss", "p@ss"}
    assert "p%40ss" not in repr(config)
    assert load(path, {}, offline=True).daemon.state is not None  # no connection is made
    path.write_text(f"{good}\ndaemon:\n  state: postgresql://ann:${{PASSWORD}}@host/db\n")
    assert load(path, {"PASSWORD": "hunter2"}).secrets >= {"hunter2"}


def test_a_state_that_is_not_a_database_is_refused(good: str, tmp_path: Path) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text(f"{good}\ndaemon:\n  state: var/state-hunter2\n")
    with pytest.raises(ConfigurationError, match=r"daemon\.state: expected postgresql://USER:PASSWORD@HOST/") as raised:
        load(path, {})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: lag}", "name: 'lag{team=\"${API_TOKEN}\"}'}"),
        ("name: lag}", "name: lag, match: {X-Auth: 'a ${OTHER}'}}"),
        ('url: "http://127.0.0.1:9090"', 'url: "http://host/${API_TOKEN}/x"'),
    ],
)
def test_a_value_whose_key_has_the_name_of_a_secret_is_masked(
    accepted: Accepted, good: str, tmp_path: Path, old: str, new: str
) -> None:
    text = good.replace(old, new)
    config = accepted(text, {"API_TOKEN": "hunter22", "OTHER": "hunter22"})
    assert config.secrets == {"hunter22"}
    assert not config.warnings
    path = tmp_path / "autoscaler.yaml"
    assert load(path, {}, offline=True).clusters
    path.write_text(text.replace("within: 60s", "within: hunter22"))
    with pytest.raises(ConfigurationError) as caught:
        load(path, {"API_TOKEN": "hunter22", "OTHER": "hunter22"})
    assert "hunter22" not in str(caught.value)


def test_a_key_called_author_is_not_a_secret(accepted: Accepted, good: str) -> None:
    config = accepted(good.replace("name: lag}", "name: '${AUTHOR}'}"), {"AUTHOR": "doyle"})
    assert config.secrets == frozenset()


def test_a_secret_in_clear_text_gives_a_warning(accepted: Accepted, good: str, tmp_path: Path) -> None:
    text = good.replace(
        "{type: stub-source,", "{type: stub-source, token: hunter22, headers: {k: '${A}', l: hunter23},"
    )
    warnings = accepted(text, {"A": "first"}).warnings
    assert [warning.removeprefix(f"{tmp_path}/autoscaler.yaml:")[:55] for warning in warnings] == [
        "2: sources.main.token: a secret in clear text: write ${",
        "2: sources.main.headers.l: a secret in clear text: writ",
    ]
    assert "hunter" not in "".join(warnings)


def test_a_name_like_that_of_a_secret_gives_a_warning(accepted: Accepted, good: str) -> None:
    (warning,) = accepted(good.replace("name: lag}", "name: lag, match: {X-Api-Key: hunter22, host: a}}")).warnings
    assert ":10: clusters.demo.metrics.lag.match.X-Api-Key: it looks like a secret in clear text" in warning
    assert "hunter" not in warning


def test_a_secret_in_a_url_gives_a_warning_and_is_masked(accepted: Accepted, good: str) -> None:
    text = good.replace("http://127.0.0.1:9090", "http://a/x?page=seven&api_key=hunter%2F22#top")
    config = accepted(text)
    (warning,) = config.warnings
    assert ":2: sources.main.url: api_key looks like a secret in clear text: write ${NAME}" in warning
    assert config.secrets == {"hunter%2F22", "hunter/22"}


def test_a_word_whose_key_only_sounds_like_a_secret_is_not_masked(accepted: Accepted, good: str) -> None:
    config = accepted(good.replace("name: lag}", "name: lag, match: {auth: required, token_pool: orders-1}}"))
    assert len(config.warnings) == 2
    assert config.secrets == {"orders-1"}
    letters = "x" * 16
    assert accepted(good.replace("name: lag}", f"name: lag, match: {{auth: {letters}}}}}")).secrets == {letters}


def test_the_value_of_a_variable_is_not_searched_for_secrets(accepted: Accepted, good: str) -> None:
    text = good.replace("{type: stub-source,", "{type: stub-source, token: '${A}',")
    assert fields_of(accepted(text, {"A": "x${B}: [y"}).sources["main"])["token"] == "x${B}: [y"


def test_a_secret_may_be_omitted_or_null(accepted: Accepted, good: str) -> None:
    text = good.replace("{type: stub-source,", "{type: stub-source, token: ,")
    assert fields_of(accepted(text).sources["main"])["token"] is None


def test_a_thousand_clusters_load_quickly(accepted: Accepted, good: str) -> None:
    head, body = good.split("clusters:\n")
    many = "".join(
        body.replace("demo:", f"demo-{number}:").replace("stub-target", f"stub-target, name: t{number}")
        for number in range(1000)
    )
    before = os.times()
    config = accepted(f"{head}clusters:\n{many}")
    after = os.times()
    assert len(config.clusters) == 1000
    assert (after.user - before.user) + (after.system - before.system) < 5


def test_the_time_zone_of_a_cluster_is_used_by_policies_without_their_own(accepted: Accepted, good: str) -> None:
    policies = """
      nightly: {type: schedule, windows: [{name: night, start: '0 1 * * *', duration: 1h, max: 2}]}
      abroad: {type: schedule, timezone: Asia/Tokyo, windows: [{name: night, start: '0 1 * * *', duration: 1h, max: 2}]}
"""
    text = good + "    time_zone: Europe/Berlin\n"
    cluster = accepted(text.replace("    policies:\n", f"    policies:{policies}", 1)).clusters["demo"]
    zones = {named.name: getattr(named.policy, "timezone", None) for named in cluster.spec.policies}
    assert zones == {"nightly": "Europe/Berlin", "abroad": "Asia/Tokyo"} | dict.fromkeys(
        zones.keys() - {"nightly", "abroad"}
    )
    assert cluster.time_zone == "Europe/Berlin"


def test_an_unknown_time_zone_is_refused_at_its_line(accepted: Accepted, good: str) -> None:
    text = good + "    time_zone: Europe/Atlantis\n"
    with pytest.raises(ConfigurationError) as caught:
        accepted(text)
    (problem,) = caught.value.problems
    line = len(text.splitlines())
    assert problem.endswith(
        f":{line}: clusters.demo.time_zone: 'Europe/Atlantis' is not the name of a time zone, such as Europe/Berlin"
    )


def test_a_cluster_without_a_time_zone_has_that_of_the_daemon_wherever_it_is_written(
    accepted: Accepted, good: str
) -> None:
    policy = "p: {type: schedule, windows: [{name: night, start: '0 1 * * *', duration: 1h, max: 2}]}"
    other = f"  other: {{target: {{type: advice}}, max: 4, time_zone: UTC, policies: {{{policy}}}}}\n"
    text = good.replace("    policies:\n", f"    policies:\n      {policy}\n", 1) + other
    config = accepted(text + "daemon: {time_zone: Europe/Berlin}\n")
    demo, other_cluster = config.clusters["demo"], config.clusters["other"]
    assert (demo.time_zone, other_cluster.time_zone) == ("Europe/Berlin", "UTC")
    zones = [getattr(cluster.spec.policies[0].policy, "timezone", None) for cluster in (demo, other_cluster)]
    assert zones == ["Europe/Berlin", "UTC"]


def test_an_unknown_time_zone_of_the_daemon_is_refused_once(refused: Refused, good: str) -> None:
    line = len(good.splitlines()) + 1
    expected = f"{line}: daemon.time_zone: 'Europe/Atlantis' is not the name of a time zone, such as Europe/Berlin"
    assert refused(good + "daemon: {time_zone: Europe/Atlantis}\n") == [expected]
