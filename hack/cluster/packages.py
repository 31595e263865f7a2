"""Installs the Debian packages that the cluster and some tests need, and prints which are missing.

`up`, `engine` and tests that need more call it first. The packages stay installed after `down`.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from hack.cluster.errors import ClusterError, UsageError
from hack.cluster.paths import CACHE, SYSTEM_PATH
from hack.cluster.progress import step

# Checks for the command, not for the package: a machine may have the command from another package (docker-ce provides
# dockerd and containerd), which Debian's package would replace.
CLUSTER = {
    "/usr/lib/cni/macvlan": "containernetworking-plugins",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "dockerd": "docker.io",
    "ip": "iproute2",
    "iptables": "iptables",
    "openssl": "openssl",
    "runc": "runc",
    "slirp4netns": "slirp4netns",
}
"""Packages for the cluster, by a command or file that each provides."""

BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}
"""Packages for browser tests, by a command that each provides."""

PROMETHEUS = {"promtool": "prometheus"}
"""The package for the tests of the alerts, by the command that they use."""


def ensure(wanted: Mapping[str, str]) -> None:
    """Install the missing packages, after any other process that installs some: apt-get update does not wait for it.

    Raises:
        UsageError: the system has no apt-get.
        ClusterError: apt-get failed.
    """
    if not _missing(wanted):
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing := _missing(wanted):
            _install(missing)


def _missing(wanted: Mapping[str, str]) -> list[str]:
    return [package for command, package in wanted.items() if not shutil.which(command, path=SYSTEM_PATH)]


def _install(missing: Sequence[str]) -> None:
    if not shutil.which("apt-get"):
        raise UsageError(
            f"apt-get is not on PATH: first install {', '.join(missing)} with this system's package manager."
        )
    with step(f"apt-get install {' '.join(missing)}"):
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            done = subprocess.run(
                ["apt-get", "--quiet", "--option=DPkg::Lock::Timeout=300", *command],
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                raise ClusterError(f"apt-get {command[0]} failed; its output ends:\n{done.stdout[-1500:]}")
