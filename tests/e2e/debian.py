"""A Debian root file system with its Python, to test images and packages and to run programs in.

It is built once and kept in a cache directory of the user.
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
# Like a container engine: its own mounts, only the mounted directories writable, no privileges.
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
    """Skip the test if debootstrap or root rights are missing; fail it if everything must be installed."""
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
    """Unpack the root file system into a new directory."""
    directory.mkdir()
    subprocess.run(["tar", "-xf", base(), "-C", directory], check=True)
    return directory


def contained(
    root: Path, *command: str, environment: Mapping[str, str], state: Path, config: Path, user: str, directory: str
) -> list[str]:
    """The command line that runs a command in a root file system, read-only, without privileges.

    Args:
        root: the root file system.
        command: the command to run.
        environment: its complete environment.
        state: mounted as /var/lib/autoscaler.
        config: mounted as /etc/autoscaler, read-only.
        user: numbers of user and group, `65532:65532`.
        directory: its working directory.
    """
    (root / "etc" / "autoscaler").mkdir(exist_ok=True)
    (root / "var" / "lib" / "autoscaler").mkdir(exist_ok=True)
    places = [str(root), str(state), str(config), user, directory]
    variables = [f"{name}={value}" for name, value in environment.items()]
    return ["unshare", "--mount", "sh", "-c", START, "sh", *places, *variables, *command]
