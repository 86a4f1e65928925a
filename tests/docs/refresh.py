"""Writes generated files again, including the tables of the documentation: `python -m tests.docs.refresh`."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import tomllib
from pathlib import Path

from autoscaler.cli import plugins_markdown
from autoscaler.config import load
from autoscaler.config.crd import crd_manifest
from autoscaler.config.keys import keys
from autoscaler.config.model import DaemonSpec
from autoscaler.config.sections import ClusterSection, FileSections, FleetSection
from autoscaler.core.model import Behaviour, CapacitySpec, SettleSpec
from autoscaler.plugins import installed
from autoscaler.ports import ConfigurationError

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
CRD = ROOT / "deploy" / "kubernetes" / "crd" / "streamautoscalers.yaml"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# Other mentions of the version, each after one of these.
VERSIONED = [
    *PAGES,
    *(ROOT / "deploy").rglob("README.md"),
    ROOT / "deploy" / "kubernetes" / "example" / "kustomization.yaml",
    ROOT / "deploy" / "helm" / "autoscaler" / "Chart.yaml",
]
MENTION = re.compile(
    r"(reactive_autoscaler-|reactive-autoscaler_|com/autoscaler:|newTag: |^version: |^appVersion: |/autoscaler-)"
    r"\d+\.\d+\.\d+",
    re.MULTILINE,
)

# <!-- plugin: adaptive -->, or <!-- plugin: source flink --> if several kinds have the name
BLOCK = re.compile(r"(<!-- plugin: (?:(?P<kind>\w+) )?(?P<name>[\w-]+) -->\n).*?(<!-- /plugin -->)", re.DOTALL)

# <!-- keys: settle -->
KEYS = re.compile(r"(<!-- keys: (\w+) -->\n).*?(<!-- /keys -->)", re.DOTALL)
DECISIONS = re.compile(r"(<!-- decisions -->\n).*?(<!-- /decisions -->)", re.DOTALL)
# the errors of the file in the block before
ERRORS = re.compile(r"(```yaml\n((?:(?!```).)*)```\n\n[^\n]*\n\n<!-- errors -->\n).*?(<!-- /errors -->)", re.DOTALL)
SECTIONS = {
    "daemon": DaemonSpec,
    "cluster": ClusterSection,
    "fleet": FleetSection,
    "behaviour": Behaviour,
    "settle": SettleSpec,
    "capacity": CapacitySpec,
}


def refreshed(page: str) -> str:
    """The page with each table generated from the installed plug-in."""
    page = BLOCK.sub(lambda match: f"{match[1]}\n{of_plugin(match['name'], match['kind'])}\n{match[4]}", page)
    page = KEYS.sub(lambda match: f"{match[1]}\n{of_section(match[2])}\n{match[3]}", page)
    page = ERRORS.sub(lambda match: f"{match[1]}```\n{errors(match[2])}\n```\n{match[3]}", page)
    return DECISIONS.sub(lambda match: f"{match[1]}\n{decisions()}\n{match[2]}", page)


def versioned(text: str) -> str:
    """The text with the version of pyproject.toml at each mention."""
    return MENTION.sub(lambda match: f"{match[1]}{VERSION}", text)


def decisions() -> str:
    """A link to each page of docs/adr, by its title."""
    lines = []
    for path in sorted((ROOT / "docs" / "adr").glob("0*.md")):
        title = path.read_text().partition("\n")[0].partition(". ")[2]
        lines.append(f"- [{path.name[:4]}: {title}]({path.name})\n")
    return "".join(lines)


def errors(text: str) -> str:
    """The report of `autoscaler check` about a file."""
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        path = Path("autoscaler.yaml")
        path.write_text(text)
        try:
            load(path, {})
        except ConfigurationError as error:
            return str(error)
    raise ValueError("the file has no errors")


def of_section(name: str) -> str:
    """The table of the keys of a part of the configuration, without parts that have their own section."""
    section = SECTIONS[name]
    default = FileSections.daemon if section is DaemonSpec else None  # its directory has one only in the file
    rows = [key for key in keys(section, default) if name not in ("cluster", "fleet") or "." not in key.path]
    return plugins_markdown.table("key", rows)


def of_plugin(name: str, kind: str | None) -> str:
    """The tables of the plug-in with that name and kind."""
    (found,) = (one for one in installed() if one.name == name and kind in {None, one.kind.noun})
    return plugins_markdown.markdown(found)


def main() -> None:
    for path in sorted({*PAGES, CRD, *VERSIONED}):
        text = path.read_text()
        new = crd_manifest() if path == CRD else versioned(refreshed(text) if path in PAGES else text)
        if new != text:
            path.write_text(new)
            sys.stdout.write(f"refreshed {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
