"""`autoscaler plugins`: lists the installed plug-ins, or the keys of one plug-in."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from autoscaler import plugins
from autoscaler.cli.options import json_option
from autoscaler.cli.output import FAILED, OK, WIDTH, print_json, print_lines, table
from autoscaler.cli.plugins_markdown import markdown, parts
from autoscaler.plugins import Description, Parameter
from autoscaler.ports import AutoscalerError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "List the installed policies, sources, engines, targets and discoveries, or describe one of them."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="describe this one, with all its keys")
    output = parser.add_mutually_exclusive_group()
    json_option(output)
    output.add_argument("--markdown", action="store_true", help="print the keys of NAME as Markdown tables")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    if arguments.markdown and arguments.name is None:
        raise AutoscalerError("--markdown describes one plug-in: give its NAME")
    found = plugins.installed()
    if arguments.name is not None:
        found = _named(arguments.name, found)
    if arguments.json:
        print_json([_json(plugin) for plugin in found])
        return OK
    if arguments.markdown:
        print_lines("\n\n".join(_markdown(plugin, titled=len(found) > 1) for plugin in found))
    elif arguments.name is not None:
        for number, plugin in enumerate(found):
            print_lines(*([""] if number else []))
            _show(plugin)
    else:
        width = max((len(plugin.name) for plugin in found), default=0)
        for plugin in found:
            head = f"{plugin.kind.noun:9}  {plugin.name:{width}}  "
            text = shorten(plugin.summary, WIDTH - len(head), placeholder=" ...")
            print_lines(head + (plugin.problem or text))
        print_lines("", "autoscaler plugins NAME describes one, with its package and all its keys.")
    return FAILED if any(plugin.problem for plugin in found) else OK


def _named(name: str, installed: Sequence[Description]) -> list[Description]:
    found = [plugin for plugin in installed if name in (plugin.name, *plugin.former_names)]
    if not found:
        known = sorted({plugin.name for plugin in installed})
        close = plugins.guess(name, known)
        raise AutoscalerError(f"no plug-in is called {name!r}; installed: {', '.join(known)}{close}")
    return found


def _show(plugin: Description) -> None:
    head = f"{plugin.kind.noun} {plugin.name} ({plugin.package} {plugin.version})"
    former = f" (formerly {', '.join(plugin.former_names)})" if plugin.former_names else ""
    print_lines(f"{head}: {plugin.problem or plugin.summary}{former}")
    for title, part in () if plugin.problem else parts(plugin):
        print_lines("")
        table((title, "default", "takes", "meaning"), [(key.path, key.default, key.takes, key.meaning) for key in part])
    if plugin.variables:
        print_lines("", f"A template may name: {', '.join(plugin.variables)}.")


def _markdown(plugin: Description, *, titled: bool) -> str:
    if plugin.problem:
        raise AutoscalerError(plugin.problem)
    title = f"The {plugin.kind.noun} `{plugin.name}`:\n\n" if titled else ""
    return title + (markdown(plugin).rstrip() or "No parameters.")


def _json(plugin: Description) -> dict[str, Any]:
    return {
        "kind": plugin.kind.noun,
        "name": plugin.name,
        "former_names": list(plugin.former_names),
        "package": plugin.package,
        "version": plugin.version,
        "reference": plugin.reference,
        "summary": plugin.summary,
        "problem": plugin.problem,
        "parameters": [_parameter(parameter) for parameter in plugin.parameters],
        "query": [_parameter(parameter) for parameter in plugin.query],
        "variables": list(plugin.variables),
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {**dataclasses.asdict(parameter), "required": parameter.default is None}
