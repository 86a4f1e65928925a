"""`autoscaler run`: runs the daemon."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal

from autoscaler.cli.options import config_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Run the daemon until it is stopped. SIGTERM and SIGINT stop it between two ticks, a second one "
        "at once; SIGHUP reloads the configuration."
    )
    config_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="decide and record everything, but call no target")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    # Block the signals until the daemon handles them: a reload must not end the process, and a stop must not fail it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    try:
        from autoscaler.cli.configuration import load_live  # noqa: PLC0415 - takes long: after the signals are blocked
        from autoscaler.daemon.event_loop import EventLoop  # noqa: PLC0415
        from autoscaler.daemon.logging import setup  # noqa: PLC0415
        from autoscaler.daemon.service import serve  # noqa: PLC0415

        origin = os.path.realpath(arguments.config)  # before reading it: a ConfigMap may change in between
        config = load_live(arguments.config)
        setup(config.daemon.log)
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            return runner.run(serve(config, lambda: load_live(arguments.config), origin, dry_run=arguments.dry_run))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
