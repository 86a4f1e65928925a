"""The requested changes of size of a simulated cluster, printed or as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoscaler.cli.output import print_lines, table
from autoscaler.cli.tables import DEFAULT_ROWS, format_elapsed, omitted_rows
from autoscaler.core.explain import explain, summarize_decision
from autoscaler.ports import Record
from autoscaler.simulation.plant import START


@dataclass(slots=True)
class Request:
    """A requested change of size, and why the call failed, if it did."""

    record: Record
    error: str | None = None

    @property
    def after(self) -> float:
        """Seconds since the beginning."""
        return (self.record.decision.at - START).total_seconds()


def show(requests: Sequence[Request], options: argparse.Namespace) -> None:
    """Print the requests, and with `--explain` each decision in full."""
    if not requests:
        print_lines("The size never changed.")
        return
    shown = requests if options.all or options.explain else requests[:DEFAULT_ROWS]
    print_lines("Requested changes of size:")
    table(("after", "size", "reason", "why"), [_row(request) for request in shown])
    print_lines(*omitted_rows(shown, requests, "changes of size"))
    if options.explain:
        for request in shown:
            print_lines("", "", explain(request.record.observation, request.record.decision))


def as_json(requests: Sequence[Request], *, explained: bool) -> list[dict[str, Any]]:
    """The requests as JSON; `explained`: with each decision in full."""
    return [_json(request, explained=explained) for request in requests]


def _row(request: Request) -> tuple[str, str, str, str]:
    decision = request.record.decision
    why = summarize_decision(decision)
    return (
        format_elapsed(request.after),
        f"{decision.current} to {decision.desired}",
        decision.reason.value,
        f"{why}; the call failed: {request.error}" if request.error else why,
    )


def _json(request: Request, *, explained: bool) -> dict[str, Any]:
    decision = request.record.decision
    found = {
        "at": decision.at.isoformat(),
        "after": request.after,
        "from": decision.current,
        "to": decision.desired,
        "reason": decision.reason.value,
        "why": summarize_decision(decision),
        "failed": request.error,
    }
    if explained:
        found["explanation"] = explain(request.record.observation, decision)
    return found
