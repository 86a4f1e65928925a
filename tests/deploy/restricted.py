"""Runs the daemon under the system call filters of a unit, with the library that systemd uses for them."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import socket
import subprocess
import sys
from pathlib import Path

from autoscaler.cli import main

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, EAFNOSUPPORT = 1, 97
EQUAL, MASKED_EQUAL = 4, 7  # scmp_compare
WRITE, EXECUTE = 2, 4  # PROT_
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
FAMILIES = 46


class Compare(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def group(analyze: str, name: str) -> set[str]:
    """The calls of a group, including those of its subgroups."""
    output = subprocess.run([analyze, "syscall-filter", name], capture_output=True, text=True, check=True).stdout
    words = re.findall(r"^ +([@\w-]+)$", output, re.MULTILINE)
    return {call for word in words for call in (group(analyze, word) if word.startswith("@") else {word})}


def allowed(analyze: str, unit: Path) -> set[str]:
    """The calls that the lines `SystemCallFilter` of the unit allow, as systemd reads them."""
    calls = group(analyze, "@default")
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit.read_text(), re.MULTILINE):
        found = {call for word in line.lstrip("~").split() for call in group(analyze, word)}
        calls = calls - found if line.startswith("~") else calls | found
    return calls


def restrict(calls: set[str], families: set[int]) -> None:
    """Filter the calls of this process from now on; also forbid code in writable memory and new namespaces."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"), use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_rule_add_array.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, Compare * 1)
    library.seccomp_load.argtypes = (ctypes.c_void_p,)

    def add(made: int, action: int, call: str, compare: Compare | None = None) -> None:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # calls of other architectures are handled below
            compares = (Compare * 1)(compare) if compare else (Compare * 1)()
            assert library.seccomp_rule_add_array(made, action, number, 1 if compare else 0, compares) == 0, call

    known = library.seccomp_init(ERRNO | EPERM)
    for call in sorted(calls):
        add(known, ALLOW, call)
    kinds = library.seccomp_init(ALLOW)
    add(kinds, ERRNO | EPERM, "mmap", Compare(2, MASKED_EQUAL, WRITE | EXECUTE, WRITE | EXECUTE))
    for call in ("mprotect", "pkey_mprotect"):
        add(kinds, ERRNO | EPERM, call, Compare(2, MASKED_EQUAL, EXECUTE, EXECUTE))
    for flag in NAMESPACES:
        add(kinds, ERRNO | EPERM, "clone", Compare(0, MASKED_EQUAL, flag, flag))
        add(kinds, ERRNO | EPERM, "unshare", Compare(0, MASKED_EQUAL, flag, flag))
    for family in set(range(FAMILIES)) - families:
        add(kinds, ERRNO | EAFNOSUPPORT, "socket", Compare(0, EQUAL, family, 0))
    for made in (kinds, known):  # the second filter may forbid calls that loading needs
        assert library.seccomp_load(made) == 0, "is libseccomp too old?"


if __name__ == "__main__":
    unit, analyze, *families, _, config = sys.argv[1:]
    # systemd sets the filters before it starts Python; there, these imports happen afterwards.
    restrict(allowed(analyze, Path(unit)), {getattr(socket, family) for family in families})
    sys.exit(main(["run", config]))
