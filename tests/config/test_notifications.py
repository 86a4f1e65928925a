"""`daemon.notifications`: refusals with their line, and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.config.model import Config
from autoscaler.notifiers.slack import Slack
from autoscaler.ports import ConfigurationError, NotificationKind, Severity

CLUSTER = "clusters: {a: {target: {type: advice}, max: 3, metrics: {lag: {source: p, query: q}}, "
CLUSTER += "policies: {m: {type: target-tracking, metric: lag, target: 100}}}}\nsources: {p: {type: prometheus, url: 'http://p:9090'}}\n"


def read(tmp_path: Path, receiver: str, **environ: str) -> Config:
    path = tmp_path / "config.yaml"
    path.write_text(f"{CLUSTER}daemon:\n  notifications:\n    ops:\n      {receiver}\n")
    return load(path, environ)


def test_a_receiver_is_read_with_its_text_unchanged_and_its_url_masked(tmp_path: Path) -> None:
    text = "      text: '${severity} ${cluster} ${message}'\n      kinds: [rescale-*]\n      severity: warning"
    receiver = f'to: {{type: slack, url: "${{HOOK}}"}}\n{text}'
    config = read(tmp_path, receiver, HOOK="https://hooks.example.com/T0/B0/x")
    spec = config.daemon.notifications["ops"]
    assert isinstance(spec.to, Slack)
    assert spec.to.url == "https://hooks.example.com/T0/B0/x"
    assert "https://hooks.example.com/T0/B0/x" in config.secrets
    assert "T0/B0" not in repr(config.daemon)
    assert spec.text == "${severity} ${cluster} ${message}"
    values = {"cluster": "${message}", "kind": "k", "severity": "error", "message": "m ${HOOK}", "time": "t"}
    assert spec.text.fill(values) == "error ${message} m ${HOOK}"
    assert spec.wants(NotificationKind.RESCALE_FAILED, Severity.ERROR, "a")
    assert not spec.wants(NotificationKind.RESCALE_BEGUN, Severity.INFO, "a")
    assert not spec.wants(NotificationKind.TROUBLE_BEGUN, Severity.ERROR, "a")


@pytest.mark.parametrize(
    ("receiver", "problem"),
    [
        ("text: x", "5: daemon.notifications.ops.to: missing; expected a notifier: a mapping with `type`"),
        ("to: {type: slak, url: x}", "6: daemon.notifications.ops.to.type: unknown notifier 'slak'; installed: "),
        ("to: {type: slack}", "6: daemon.notifications.ops.to.url: missing; expected a string or ${NAME}"),
        ("to: {type: webhook, url: 'ftp://a'}", "6: daemon.notifications.ops.to.url: must be an address such as"),
        (
            "{to: {type: slack, url: 'http://a'}, kinds: [recsale-*]}",
            "kinds: 'recsale-*' matches none of rescale-",
        ),
        ("{to: {type: slack, url: 'http://a'}, severity: bad}", "severity: expected one of error, warning, info"),
        ("{to: {type: slack, url: 'http://a'}, rate: 0}", "rate: must be 1 or more, not 0"),
        ("{to: {type: slack, url: 'http://a'}, text: '${clutser}'}", "text: unknown variable clutser in ${clutser}; "),
        ("{to: {type: slack, url: 'http://a'}, text: '${HOME}'}", "text: ${HOME} is an environment variable, not one"),
        ("{to: {type: slack, url: 'http://a'}, text: '${cluster'}", "text: ${cluster is not an expression"),
        (
            "{to: {type: slack, url: 'http://a'}, text: 5}",
            "text: expected a string with expressions such as ${cluster}",
        ),
    ],
)
def test_invalid_settings_are_named_with_their_position(tmp_path: Path, receiver: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, receiver)
    assert len(raised.value.problems) == 1
    assert problem in raised.value.problems[0]
    assert raised.value.problems[0].startswith(f"{tmp_path}/config.yaml:")
