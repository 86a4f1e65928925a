"""Writes the keys of a plug-in as Markdown tables: they are the tables of parameters in the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autoscaler import plugins
from autoscaler.config import build
from autoscaler.config.keys import Key, keys

# A default at the end of a meaning is removed, because the column `default` has it.
_DEFAULT_LAST = re.compile(r"[;,.]?\s*[Dd]efault:?\s+`?[\w.%]+`?\.?$")


def markdown(description: plugins.Description) -> str:
    """A table of the plug-in's parameters; for a source also a table of a metric's, for a discovery the variables.

    Raises:
        PluginError: the plug-in cannot be used.
    """
    tables = [table(title, rows) for title, rows in parts(description)]
    if description.variables:
        tables.append(f"A template may name {', '.join(f'`{name}`' for name in description.variables)}.\n")
    return "\n".join(tables)


def parts(description: plugins.Description) -> list[tuple[str, list[Key]]]:
    """The keys of a plug-in, and those of a metric if it is a source. Raises PluginError: it cannot be used."""
    cls = build.usable(plugins.load(description.kind, description.name), description.kind)
    found = [("key", list(keys(cls)))]
    if description.kind is plugins.Kind.SOURCE:
        found.append(("key of a metric", list(keys(cls.Query))))
    return [(title, rows) for title, rows in found if rows]


def table(title: str, rows: Iterable[Key]) -> str:
    """One table of keys. A meaning that consecutive keys share is written once."""
    lines = [f"| {title} | default | takes | meaning |", "|---|---|---|---|"]
    above = ""
    for row in rows:
        default = row.default if row.default in {"required", "none", "as below"} else f"`{row.default}`"
        meaning = "as above" if above and row.meaning == above else _meaning(row.meaning)
        lines.append(f"| `{row.path}` | {default} | {_takes(row.takes)} | {meaning} |")
        above = row.meaning
    return "\n".join(lines) + "\n"


def _takes(words: str) -> str:
    words = words.replace("a duration like 30s, 5m or 1h30m", "duration").replace("${NAME}", "`${NAME}`")
    return _escaped(re.sub(r"\ba(n?) (?=\w)", "", words))


def _meaning(words: str) -> str:
    return _escaped(_DEFAULT_LAST.sub("", words).rstrip(". "))


def _escaped(words: str) -> str:
    return words.replace("|", "\\|")
