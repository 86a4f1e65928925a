"""Writes fake installed distributions, so that tests find plug-ins by real entry points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write_distribution(
    site: Path,
    name: str,
    points: Mapping[str, Mapping[str, str]],
    *,
    modules: Mapping[str, str] | None = None,
    version: str = "1.0",
    requires: Sequence[str] = (),
) -> None:
    """Write the files that an installer would write: the metadata with the entry points, and the modules."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(metadata) + "\n")
    lines: list[str] = []
    for group, entries in points.items():
        lines += [f"[autoscaler.{group}]", *(f"{point} = {target}" for point, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in (modules or {}).items():
        (site / f"{module}.py").write_text(source)
