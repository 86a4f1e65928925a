"""`autoscaler simulate`."""

from __future__ import annotations

import argparse

from autoscaler.ports import AutoscalerError


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    raise AutoscalerError(f"{options.config}: not built yet")
