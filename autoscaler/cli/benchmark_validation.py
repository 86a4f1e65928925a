"""`autoscaler benchmark --validate`: the simulation beside published measurements of a real Flink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from autoscaler.cli.output import print_json, print_lines, progress, table
from autoscaler.core.model import ClusterSpec
from autoscaler.simulation.loads import Load, load_by_name
from autoscaler.simulation.validation import MEASURED, SETUPS, Measured, Setup, Simulated, simulated


def validate(spec: ClusterSpec, traces: Path, seeds: Sequence[int], *, json: bool) -> None:
    """Simulate what was measured, and print both and how far they are apart.

    Args:
        spec: a cluster with the policy that was measured.
        traces: the folder of the recorded loads.
        seeds: one run each.
        json: print JSON.

    Raises:
        LoadError: a load cannot be read.
    """
    loads = {measured.scenario: load_by_name(measured.scenario, 0, traces) for measured in MEASURED}
    found = _run(spec, loads, seeds)
    if json:
        print_json([_plain(*each) for each in found])
        return
    print_lines(
        f"Flink in Reactive Mode with an HPA at 35 % CPU, measured for 18 h and simulated with {len(seeds)} seeds", ""
    )
    table(
        ("load", "workers of 24", "measured", "deviation", "late", "late while it runs", "measured", "rescales/h"),
        [
            (
                measured.scenario,
                f"{one.workers:.1%}",
                f"{measured.workers:.0%}",
                f"{one.workers / measured.workers - 1:+.0%}",
                f"{one.late:.1%}",
                f"{one.shown:.1%}",
                f"{measured.late:.1%}",
                f"{one.rescales:.1f}",
            )
            for measured, setup, one in found
            if setup is SETUPS[0]
        ],
    )
    print_lines("", "The same with one thing changed:", "")
    names = [measured.scenario for measured in MEASURED]
    table(
        ("", *(f"{name}: {what}" for name in names for what in ("workers", "late", "while it runs"))),
        [
            (
                setup.name,
                *(
                    cell
                    for measured, other, one in found
                    if other is setup
                    for cell in (f"{one.workers:.1%}", f"{one.late:.1%}", f"{one.shown:.1%}")
                ),
            )
            for setup in SETUPS
        ],
    )


def _run(spec: ClusterSpec, loads: dict[str, Load], seeds: Sequence[int]) -> list[tuple[Measured, Setup, Simulated]]:
    found = []
    with progress("validation", len(MEASURED) * len(SETUPS)) as advance:
        for measured in MEASURED:
            for setup in SETUPS:
                found.append((measured, setup, simulated(spec, measured, loads[measured.scenario], setup, seeds)))
                advance(len(found))
    return found


def _plain(measured: Measured, setup: Setup, found: Simulated) -> dict[str, object]:
    return {
        "load": measured.scenario,
        "setup": setup.name,
        "measured": {"workers": measured.workers, "late": measured.late},
        "simulated": asdict(found),
        "deviation": {
            "workers": found.workers / measured.workers - 1,
            "late": found.late - measured.late,
            "shown": found.shown - measured.late,
        },
    }
