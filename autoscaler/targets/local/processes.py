"""Processes of this machine and the workers they belong to (Linux: /proc and pidfd).

Pids are reused, so a pid does not identify a process. A process is the recorded one if its pid, its start time and a
token in its environment match the record. The token is random for each worker. All its child processes inherit it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "AUTOSCALER_WORKER"
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A living process.

    Attributes:
        pid: the process id.
        start: when the process started, in clock ticks since the boot of the machine.
    """

    pid: int
    start: int


def find(pid: int) -> Process | None:
    """Return the living process with this pid; None when there is none, or only a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses. The command itself may have blanks and parentheses.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid=pid, start=int(fields[19]))


def has_token(pid: int, token: str) -> bool:
    """Whether the process was started with this token; False if its environment cannot be read."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return f"{VARIABLE}={token}".encode() in environment.split(b"\0")


def family(token: str) -> list[Process]:
    """Return every living process with the token, oldest first."""
    found = [process for pid in _pids() if has_token(pid, token) and (process := find(pid)) is not None]
    return sorted(found, key=lambda process: (process.start, process.pid))


def matches(pid: int, start: int, token: str) -> bool:
    """Whether the living process with this pid is the recorded one."""
    process = find(pid)
    return process is not None and process.start == start and has_token(pid, token)


def send(pid: int, start: int, token: str, number: signal.Signals) -> bool:
    """Send a signal to the process if it is the recorded one. Return whether the signal was sent."""
    try:
        # The descriptor keeps referring to this process, even if its pid is reused between the check and the signal.
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not matches(pid, start, token):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def spawn(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start a process in its own session, so that it outlives this process. Its output goes to the log.

    Raises:
        OSError: the process cannot be started, or the log cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    # Python ignores these two signals. A program that inherited this would not notice a closed pipe.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawnp(
        argv[0], list(argv), environment, file_actions=actions, setsid=True, setsigdef=defaults, setsigmask=[]
    )


def reap(pid: int) -> int | None:
    """Collect the exit code of an ended child (negative: the signal); None if it is alive or not our child."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if ended else None


def listening_addresses() -> set[str]:
    """Return the IPv4 addresses of this machine that have a listening socket."""
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            if state == "0A":
                # The last four bytes of an IPv4-mapped IPv6 address are the IPv4 address.
                raw = bytes.fromhex(local.split(":")[0][-8:])
                found.add(".".join(str(byte) for byte in reversed(raw)))
    return found


def _pids() -> Iterator[int]:
    own = os.getuid()
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == own:
                    yield int(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
