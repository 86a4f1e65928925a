"""A root file system of Debian with its Python, in which images and packages are tried, and programs run in one.

It is made once and kept in a directory of the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.kube_server import missing

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "netbase", "python3", "tzdata")
SECONDS = 900
# As a container engine starts one: its own mounts, nothing writable but what is mounted, no privileges.
START = """
set -e
root=$1; state=$2; config=$3; user=$4; directory=$5; shift 5
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$state" "$root/var/lib/autoscaler"
mount --bind -o ro "$config" "$root/etc/autoscaler"
mount -t proc proc "$root/proc"
exec chroot "$root" setpriv --reuid="${user%:*}" --regid="${user#*:}" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all env --chdir="$directory" -i "$@"
"""


def need(*commands: str) -> None:
    """Skip the test without them, or without the rights of root; fail it where all must be there."""
    absent = [name for name in commands if shutil.which(name) is None]
    if absent:
        missing(f"not installed: {', '.join(absent)}")
    if os.geteuid() != 0:
        missing("needs root: it mounts and changes roots")


def base() -> Path:
    """An archive of the root file system."""
    need("mmdebstrap")
    wanted = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "reactive-autoscaler-tests" / f"debian-{wanted}"
    directory.mkdir(parents=True, exist_ok=True)
    found = directory / "root.tar"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            building = directory / "building.tar"
            command = ["mmdebstrap", "--variant=essential", f"--include={','.join(PACKAGES)}", SUITE, str(building)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode:
                missing(f"Debian cannot be had: {done.stderr[-500:]}")
            building.rename(found)
    return found


def unpacked(directory: Path) -> Path:
    """The root file system in a directory, which is made."""
    directory.mkdir()
    subprocess.run(["tar", "-xf", base(), "-C", directory], check=True)
    return directory


def contained(
    root: Path, *command: str, environment: Mapping[str, str], state: Path, config: Path, user: str, directory: str
) -> list[str]:
    """The command line that runs a command in a root file system, read-only, without privileges.

    Args:
        root: the root file system.
        command: what runs in it.
        environment: all of its environment.
        state: is /var/lib/autoscaler in it.
        config: is /etc/autoscaler in it, read-only.
        user: numbers of user and group, `65532:65532`.
        directory: its working directory.
    """
    (root / "etc" / "autoscaler").mkdir(exist_ok=True)
    (root / "var" / "lib" / "autoscaler").mkdir(exist_ok=True)
    places = [str(root), str(state), str(config), user, directory]
    variables = [f"{name}={value}" for name, value in environment.items()]
    return ["unshare", "--mount", "sh", "-c", START, "sh", *places, *variables, *command]
