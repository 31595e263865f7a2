"""The Debian packages that the cluster and the tests of pages need: installs those that are missing, and says which.

Called first by `up`, and by the tests that open a browser. They stay installed after `down`, as a person's own
`apt-get install` would.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping

from tests.cluster.errors import ClusterError, UsageError
from tests.cluster.places import SYSTEM_PATH
from tests.cluster.progress import step

# Judged by the command and not by the package, because a machine may have the same thing from elsewhere (docker-ce
# brings dockerd and a containerd of its own), which Debian's package would push out.
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
"""What the cluster needs: packages by a command or file of theirs."""

BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}
"""What a test of a page needs."""


def ensure(wanted: Mapping[str, str]) -> None:
    """Install what is missing.

    Raises:
        UsageError: this is no Debian, so the packages have to come by other means.
        ClusterError: apt-get failed.
    """
    missing = [package for command, package in wanted.items() if not shutil.which(command, path=SYSTEM_PATH)]
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise UsageError(f"apt-get is not here: install {', '.join(missing)} by this system's own means first.")
    with step(f"apt-get install {' '.join(missing)}"):
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            done = subprocess.run(
                ["apt-get", "--quiet", *command],
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                raise ClusterError(f"apt-get {command[0]} failed; its last words:\n{done.stdout[-1500:]}")
