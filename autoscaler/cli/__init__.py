"""The command line: `autoscaler --help` lists the commands.

Exit codes: 0 ok, 1 failed, 2 usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import logging
import os
import signal
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import options as typed
from autoscaler.cli.output import complain, hang, print_json, say, table
from autoscaler.core.explain import count_of
from autoscaler.ports import AutoscalerError, ConfigurationError, Severity

if TYPE_CHECKING:
    from autoscaler.config.model import Config
    from autoscaler.daemon.one_shot import Checked

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: `--help` is quick, and the daemon carries
# nothing that it does not use.

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

URL = "http://127.0.0.1:8765"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        parsed = _parser(arguments).parse_args(arguments)
    except SystemExit as stop:  # argparse has told what is wrong
        return stop.code if isinstance(stop.code, int) else USAGE
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        return command(parsed)
    except ConfigurationError as error:
        complain(*error.problems)
        return USAGE
    except AutoscalerError as error:
        complain(f"autoscaler: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autoscaler",
        description="Decides how many workers a streaming cluster needs, changes the number, and can say why.",
        epilog="Exit codes: 0 ok, 1 failed, 2 usage or configuration, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"autoscaler {version('reactive-autoscaler')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(command=function)
        return sub

    def as_json(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--json", action="store_true", help="print JSON")

    sub = command("run", _run, "run the daemon until it is stopped")
    sub.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    sub.add_argument("--dry-run", action="store_true", help="decide and record everything, but call no target")

    sub = command("check", _check, "validate a configuration")
    sub.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    sub.add_argument(
        "--online", action="store_true", help="also connect everything, read every metric once, and examine the jobs"
    )
    as_json(sub)

    sub = command("plan", _plan, "look once and tell what would be decided, changing nothing")
    sub.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    as_json(sub)

    sub = command("status", _status, "show the clusters of a running daemon")
    sub.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="its configuration, to find it")
    sub.add_argument("--cluster", metavar="CLUSTER", help="show one cluster, and all that was learned of it")
    sub.add_argument("--url", help=f"where it listens (default: {URL})")
    as_json(sub)

    sub = command("explain", _explain, "tell why a running daemon decided what it did")
    sub.add_argument("cluster", metavar="CLUSTER", help="name of the cluster")
    which = sub.add_mutually_exclusive_group()
    which.add_argument("--last", type=typed.count, default=1, metavar="N", help="the last N decisions, newest first")
    which.add_argument(
        "--at", type=typed.moment, metavar="TIME", help="the decision in force then, like 2026-01-31T17:05:00Z"
    )
    sub.add_argument("--config", type=Path, metavar="CONFIG", help="the daemon's configuration, to find it")
    sub.add_argument("--url", help=f"where it listens (default: {URL})")
    as_json(sub)

    sub = command("plugins", _plugins, "list what is installed: policies, sources, engines, targets")
    sub.add_argument("name", nargs="?", metavar="NAME", help="show this one, with all its keys")
    as_json(sub)

    command("schema", _schema, "print the JSON Schema of the configuration file")

    sub = command("demo", _demo, "scale a real Spark cluster on this machine under a changing load")
    if "demo" in arguments:
        from autoscaler import demo

        demo.add_arguments(sub)

    sub = command("simulate", _simulate, "try a configuration on a simulated cluster under a load")
    if "simulate" in arguments:
        typed.simulate(sub)

    sub = command("replay", _replay, "tell what a configuration would have decided about what was recorded")
    if "replay" in arguments:
        typed.replay(sub)

    _benchmark_options(command("benchmark", _benchmark, "compare policies on simulated clusters"), arguments)
    _on_spark(commands, arguments)
    return parser


def _on_spark(commands: typed.Commands, arguments: Sequence[str]) -> None:
    """The commands that run on Spark."""
    for name, text in (
        ("history", "collect the history of a fleet in a dataset, and query it"),
        ("profile", "analyze the history of each cluster"),
        ("backtest", "try policies and parameters on recorded load"),
        ("tune", "find the parameters that meet an objective at the least cost"),
    ):
        if name in arguments:
            import_module(f"autoscaler.cli.{name}").register(commands)
        else:
            commands.add_parser(name, help=text)


def _load(path: Path) -> Config:
    from autoscaler import config

    return config.load(path, os.environ)


def _run(arguments: argparse.Namespace) -> int:
    # Held back until there is a daemon to act on them: a reload must not end it, nor a stop look like a failure.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    try:
        from autoscaler.daemon.logging import setup
        from autoscaler.daemon.service import serve

        config = _load(arguments.config)
        setup(config.daemon.log)
        return asyncio.run(serve(config, lambda: _load(arguments.config), dry_run=arguments.dry_run))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check(arguments: argparse.Namespace) -> int:
    try:
        config = _load(arguments.config)
    except ConfigurationError as error:
        if arguments.json:
            print_json({"ok": False, "problems": list(error.problems)})
            return USAGE
        raise
    if not arguments.online:
        if arguments.json:
            print_json(
                {"ok": True, "problems": [], "warnings": list(config.warnings), "clusters": sorted(config.clusters)}
            )
        else:
            say(*(f"warning: {warning}" for warning in config.warnings))
            clusters = count_of(len(config.clusters), "cluster")
            say(f"{config.path} is fine: {clusters}: {', '.join(sorted(config.clusters))}")
        return OK
    from autoscaler.daemon.one_shot import check

    _log_nothing()
    checked = asyncio.run(check(config))
    bad = _is_bad(checked)
    if arguments.json:
        print_json(_checked_json(config, checked, ok=not bad))
    else:
        _show_checked(config, checked)
    return FAILED if bad else OK


def _log_nothing() -> None:
    """What is logged is in what is printed as well; Python's last resort would show it twice, without its details."""
    for name in ("autoscaler", "kubernetes_asyncio"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def _is_bad(checked: Checked) -> bool:
    return any(_failed(checked, name) for name in checked.doubts) or any(
        examined.error or any(finding.severity is Severity.ERROR for finding in examined.findings)
        for examined in checked.examined
    )


def _failed(checked: Checked, cluster: str) -> set[str]:
    """What could not be read there; what only has no value yet is no failure."""
    return set(checked.doubts[cluster]) - checked.awaited[cluster]


def _show_checked(config: Config, checked: Checked) -> None:
    from autoscaler.core.explain import readings

    say(*(f"warning: {warning}" for warning in config.warnings))
    rows = []
    for name, observation in checked.observations.items():
        doubts = checked.doubts[name]
        for what, text in readings(observation):
            doubt = doubts.get(what)
            rows.append((name, what, "failed" if doubt else "ok", doubt or text))
        awaited = checked.awaited[name]
        shown = {what for what, _ in readings(observation)}
        for what, why in doubts.items():
            if what not in shown:
                rows.append((name, what, "not yet" if what in awaited else "failed", why))
        rows.extend((name, "target", "remark", remark) for remark in checked.remarks[name])
    table(("cluster", "what", "result", ""), rows)
    for examined in checked.examined:
        if examined.error:
            say("", f"ERROR: {examined.part} of cluster {examined.cluster} could not be examined: {examined.error}")
        for finding in examined.findings:
            say(
                "",
                f"{finding.severity.upper()}: {finding.subject} ({examined.part} of cluster {examined.cluster})",
                hang("  problem: ", finding.problem),
                hang("  cost:    ", finding.cost),
                hang("  remedy:  ", finding.remedy),
            )
    findings = [finding for examined in checked.examined for finding in examined.findings]
    failed = sum(len(_failed(checked, name)) for name in checked.doubts)
    say(
        "",
        f"{count_of(len(config.clusters), 'cluster')}, {count_of(failed, 'reading')} failed, "
        f"{count_of(len(findings), 'finding')}.",
    )


def _checked_json(config: Config, checked: Checked, *, ok: bool) -> object:
    from autoscaler.trace.codec import to_json

    return {
        "ok": ok,
        "warnings": list(config.warnings),
        "clusters": {
            name: {
                "observation": to_json(observation),
                "doubts": checked.doubts[name],
                "awaited": sorted(checked.awaited[name]),
                "remarks": list(checked.remarks[name]),
            }
            for name, observation in checked.observations.items()
        },
        "examined": [
            {
                "cluster": examined.cluster,
                "part": examined.part,
                "error": examined.error or None,
                "findings": [
                    {
                        "severity": finding.severity.value,
                        "subject": finding.subject,
                        "problem": finding.problem,
                        "cost": finding.cost,
                        "remedy": finding.remedy,
                    }
                    for finding in examined.findings
                ],
            }
            for examined in checked.examined
        ],
    }


def _plan(arguments: argparse.Namespace) -> int:
    from autoscaler.core.explain import explain
    from autoscaler.daemon.one_shot import plan
    from autoscaler.trace.codec import to_json

    config = _load(arguments.config)
    _log_nothing()
    records = asyncio.run(plan(config))
    if arguments.json:
        print_json(
            [
                {
                    "observation": to_json(record.observation),
                    "decision": to_json(record.decision),
                    "explanation": explain(record.observation, record.decision, dry_run=True),
                }
                for record in records
            ]
        )
    else:
        say("\n\n".join(explain(record.observation, record.decision, dry_run=True) for record in records))
    return FAILED if any(record.observation.missing for record in records) else OK


def _status(arguments: argparse.Namespace) -> int:
    if arguments.cluster is not None:
        return _status_of(arguments)
    answer = _ask(_url(arguments), "/api/v1/clusters", "clusters")
    if arguments.json:
        print_json(answer)
        return OK
    _rows(answer["clusters"], dry_run=answer["dry_run"])
    return OK


def _rows(clusters: Sequence[dict[str, Any]], *, dry_run: bool) -> None:
    # A terminal has no room for whole sentences in a table of so many columns: they come below it.
    wide = not sys.stdout.isatty()
    rows = [
        (
            row["name"],
            _size(row["ready"]),
            _size(row["current"]),
            _size(row["desired"]),
            _size(row["proposed"]),
            f"{row['min']}-{row['max']}",
            row["reason"] or "-",
            _way(row["rescale"]),
            "-" if row["age"] is None else f"{row['age']:.0f} s ago",
            *((_trouble(row) or "-",) if wide else ()),
        )
        for row in clusters
    ]
    head = ("cluster", "ready", "size", "decided", "proposed", "limits", "reason", "rescale", "when")
    table((*head, *(("trouble",) if wide else ())), rows)
    if not wide:
        say(*(f"\n{row['name']}: {_trouble(row)}" for row in clusters if _trouble(row)))
    if dry_run:
        say("", "This is a dry run: no target is called.")


def _status_of(arguments: argparse.Namespace) -> int:
    answer = _ask(_url(arguments), f"/api/v1/clusters/{urllib.parse.quote(arguments.cluster, safe='')}", "learned")
    if arguments.json:
        print_json(answer)
        return OK
    _rows([answer], dry_run=answer["dry_run"])
    if answer["decision"] is not None:
        _show_recommendations(answer["decision"]["recommendations"])
    learned = answer["learned"] or {"capacity": (), "durations": {}, "memory": {}}
    _show_capacity(learned["capacity"])
    _show_durations(learned["durations"])
    _show_memory(learned["memory"])
    return OK


def _show_recommendations(recommendations: Sequence[dict[str, Any]]) -> None:
    from autoscaler.core.explain import format_number

    say("", "What the policies ask for, and the numbers they made it of:")
    rows = [
        (
            asked["policy"],
            "-" if asked["replicas"] is None else str(asked["replicas"]),
            asked["reason"],
            asked["detail"] or "-",
            ", ".join(f"{name} {format_number(float(value))}" for name, value in asked["inputs"].items()) or "-",
        )
        for asked in recommendations
    ]
    table(("policy", "size", "reason", "why", "numbers"), rows)


def _show_capacity(capacity: Sequence[dict[str, Any]]) -> None:
    from autoscaler.core.explain import format_age, format_number

    if not capacity:
        say("", "What a size can process was not learned yet: the job has not been seen busy for long enough.")
        return
    say("", "What a size processes when busy:")
    rows = [
        (str(size["replicas"]), format_number(size["rate"]), format_age(size["age"]), count_of(size["samples"], "time"))
        for size in capacity
    ]
    table(("replicas", "records/s", "seen last", "seen"), rows)


def _show_durations(durations: dict[str, dict[str, Any]]) -> None:
    if not any(seen["phases"] for seen in durations.values()):
        say("", "How long a rescale takes was not learned yet: none has settled.")
        return
    say("", "How long a rescale takes, by the last few:")
    rows = []
    for direction, seen in durations.items():
        for phase, took in seen["phases"].items():
            last = "the last one" if took["samples"] == 1 else f"median of the last {took['samples']}"
            rows.append((direction, phase.replace("_", " "), _took(took["median"]), last))
        if seen["restart"] is not None:
            rows.append((direction, "until it runs", _took(seen["restart"]), "all phases but catching up"))
    table(("direction", "phase", "takes", "by"), rows)


def _took(seconds: float) -> str:
    from autoscaler.core.explain import format_number, format_span

    # Below that the rounding to whole seconds hides what there is to see.
    return f"{format_number(seconds)} s" if seconds < 10 else format_span(seconds)  # noqa: PLR2004


def _show_memory(memory: dict[str, dict[str, dict[str, float]]]) -> None:
    rows = [
        (policy, group or "-", ", ".join(numbers))
        for policy, learned in memory.items()
        for group, numbers in _groups(learned)
    ]
    if rows:
        say("", "What the policies have learned:")
        table(("policy", "of", "numbers"), rows)


def _groups(learned: dict[str, dict[str, float]]) -> list[tuple[str, list[str]]]:
    """Learned numbers and ages by what stands before the last dot of their names, numbered ones in order."""
    from autoscaler.core.explain import format_age, format_number

    groups: dict[str, list[str]] = {}
    for kind, write in (("numbers", format_number), ("ages", format_age)):
        for name, value in learned[kind].items():
            group, _, leaf = name.rpartition(".")
            groups.setdefault(group, []).append(f"{leaf} {write(value)}")
    return sorted(groups.items(), key=lambda group: _numbered(group[0]))


def _numbered(name: str) -> list[tuple[int, str]]:
    """What to sort dotted names by, so that 2 comes before 12."""
    return [(len(part) if part.isdecimal() else 0, part) for part in name.split(".")]


def _way(rescale: dict[str, Any] | None) -> str:
    if rescale is None:
        return "-"
    return f"{rescale['before']} to {rescale['to']}: {rescale['phase'].replace('_', ' ')}"


def _trouble(row: dict[str, Any]) -> str:
    trouble = [f"{name}: {why}" for name, why in row["missing"].items()]
    if row["problem"]:
        trouble.insert(0, row["problem"])
    return "; ".join(trouble)


def _size(number: int | None) -> str:
    return "?" if number is None else str(number)


def _explain(arguments: argparse.Namespace) -> int:
    query = {"limit": str(1 if arguments.at else arguments.last)}
    if arguments.at:
        query["until"] = arguments.at.isoformat()
    path = f"/api/v1/clusters/{urllib.parse.quote(arguments.cluster, safe='')}/decisions"
    answer = _ask(_url(arguments), f"{path}?{urllib.parse.urlencode(query)}", "decisions")
    if arguments.json:
        print_json(answer)
        return OK
    if not answer["decisions"]:
        when = f" up to {arguments.at:%Y-%m-%d %H:%M:%S %Z}" if arguments.at else " yet"
        complain(f"autoscaler: no decision about cluster {arguments.cluster} is kept{when}")
        return FAILED
    say("\n\n\n".join(decision["explanation"] for decision in answer["decisions"]))
    return OK


def _url(arguments: argparse.Namespace) -> str:
    if arguments.url:
        return str(arguments.url).rstrip("/")
    if arguments.config is None:
        return URL
    listen = _load(arguments.config).daemon.listen
    host, _, port = listen.rpartition(":")
    if port == "0":
        raise AutoscalerError(f"daemon.listen is {listen}: the port is in the daemon's log, pass it with --url")
    # A daemon that listens on every address is also on the loopback one.
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - compared, not listened on
    return f"http://{host}:{port}"


def _ask(url: str, path: str, key: str) -> Any:  # noqa: ANN401 - JSON
    # The daemon is asked directly: a proxy of the environment does not know this machine's loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    if not url.startswith(("http://", "https://")):
        raise AutoscalerError(f"{url} is not a URL like {URL}")
    try:
        with opener.open(url + path, timeout=10) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        raise AutoscalerError(_refusal(error, url)) from error
    except http.client.HTTPException as error:
        raise AutoscalerError(f"{url} answers, but not like an autoscaler: {type(error).__name__}") from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise AutoscalerError(
            f"no daemon answers at {url} ({reason}): is it running? Say where with --url or its configuration"
        ) from error
    except ValueError as error:
        raise AutoscalerError(f"{url} answers, but not like an autoscaler: no JSON") from error
    if not isinstance(answer, dict) or key not in answer:
        raise AutoscalerError(f"{url} answers, but not like an autoscaler: there is no {key!r} in it")
    return answer


def _refusal(error: urllib.error.HTTPError, url: str) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{url} answers, but not like an autoscaler: {error.code} {error.reason}"


def _plugins(arguments: argparse.Namespace) -> int:
    from autoscaler import plugins

    found = plugins.installed()
    if arguments.name is not None:
        known = {plugin.name for plugin in found}
        if arguments.name not in known:
            close = plugins.guess(arguments.name, known)
            raise AutoscalerError(
                f"no plug-in is called {arguments.name!r}; installed: {', '.join(sorted(known))}{close}"
            )
        found = [plugin for plugin in found if plugin.name == arguments.name]
    if arguments.json:
        print_json(
            [
                {
                    "kind": plugin.kind.noun,
                    "name": plugin.name,
                    "package": plugin.package,
                    "version": plugin.version,
                    "reference": plugin.reference,
                    "summary": plugin.summary,
                    "problem": plugin.problem or None,
                    "parameters": [_parameter(parameter) for parameter in plugin.parameters],
                    "query": [_parameter(parameter) for parameter in plugin.query],
                }
                for plugin in found
            ]
        )
        return OK
    if arguments.name is not None:
        for number, plugin in enumerate(found):
            say(*([""] if number else []))
            _one_plugin(plugin)
        return FAILED if any(plugin.problem for plugin in found) else OK
    rows = [
        (
            plugin.kind.noun,
            plugin.name,
            f"{plugin.package} {plugin.version}",
            plugin.problem or plugin.summary,
            ", ".join(
                parameter.name if parameter.default is None else f"{parameter.name}={parameter.default}"
                for parameter in plugin.parameters
            )
            or "-",
        )
        for plugin in found
    ]
    table(("kind", "name", "package", "what it does", "parameters"), rows)
    return FAILED if any(plugin.problem for plugin in found) else OK


def _one_plugin(plugin: Any) -> None:  # noqa: ANN401 - plugins.Description, imported only when needed
    from autoscaler import plugins
    from autoscaler.config import build
    from autoscaler.config.keys import keys

    head = f"{plugin.kind.noun} {plugin.name} ({plugin.package} {plugin.version})"
    say(f"{head}: {plugin.problem or plugin.summary}")
    if plugin.problem:
        return
    cls = build.usable(plugins.load(plugin.kind, plugin.name), plugin.kind)
    parts = [("key", cls)]
    if plugin.kind is plugins.Kind.SOURCE:
        parts.append(("key of a metric", cls.Query))
    for title, part in parts:
        rows = [(key.path, key.default, key.takes, key.meaning) for key in keys(part)]
        if rows:
            say("")
            table((title, "default", "takes", "meaning"), rows)


def _parameter(parameter: Any) -> dict[str, Any]:  # noqa: ANN401 - plugins.Parameter, imported only when needed
    return {
        "name": parameter.name,
        "type": parameter.type,
        "default": parameter.default,
        "required": parameter.default is None,
        "doc": parameter.doc,
    }


def _schema(arguments: argparse.Namespace) -> int:
    del arguments
    from autoscaler import config

    print_json(config.json_schema())
    return OK


def _demo(arguments: argparse.Namespace) -> int:
    from autoscaler import demo

    return int(demo.run(arguments))


def _simulate(arguments: argparse.Namespace) -> int:
    from autoscaler.cli import simulate

    return simulate.run(arguments)


def _replay(arguments: argparse.Namespace) -> int:
    from autoscaler.cli import replay

    return replay.run(arguments)


def _benchmark_options(sub: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    if "benchmark" in arguments:
        from autoscaler.cli import benchmark

        benchmark.add_arguments(sub)


def _benchmark(arguments: argparse.Namespace) -> int:
    from autoscaler.cli import benchmark

    return benchmark.run(arguments)
