"""Two clusters that scale one object are refused, whatever the other parameters of their targets are."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.ports import ConfigurationError

LOCAL = "type: local, master: 'spark://m:7077'"
KUBERNETES = "type: kubernetes, name"
FLINK = "type: flink-requirements, url"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (f"{LOCAL}, directory: w", f"{LOCAL}, directory: w, cores: 2", True),
        (f"{LOCAL}, directory: w", f"{LOCAL}, directory: v", False),
        (f"{FLINK}: 'http://f:8081', job: a", f"{FLINK}: 'http://f:8081/', job: a, timeout: 2s", True),
        (f"{FLINK}: 'http://f:8081', job: a", f"{FLINK}: 'http://f:8081', job: b", False),
        (f"{KUBERNETES}: w", f"{KUBERNETES}: w, choose_pods: true, watch: cluster", True),
        (f"{KUBERNETES}: w, resource: g.io/v1/things", f"{KUBERNETES}: w, resource: g.io/v2/things", True),
        (f"{KUBERNETES}: w", f"{KUBERNETES}: w, namespace: other", False),
        (f"{KUBERNETES}: w", f"{KUBERNETES}: w, resource: statefulsets", False),
        ("type: advice, size: 2", "type: advice, size: 2", False),
    ],
)
def test_two_clusters_may_not_scale_one_object(tmp_path: Path, one: str, other: str, same: bool) -> None:
    file = tmp_path / "autoscaler.yaml"
    lines = ["sources: {p: {type: prometheus, url: 'http://p:9090'}}", "clusters:"]
    for name, target in (("a", one), ("b", other)):
        lines += [
            f"  {name}:",
            f"    target: {{{target}}}",
            "    max: 4",
            "    metrics: {cpu: {source: p, query: cpu}}",
            "    policies: {p: {type: target-tracking, metric: cpu, target: 1}}",
        ]
    file.write_text("\n".join(lines))
    if same:
        with pytest.raises(ConfigurationError, match="cluster 'a' has the same target"):
            load(file, {})
    else:
        assert len(load(file, {}).clusters) == 2
