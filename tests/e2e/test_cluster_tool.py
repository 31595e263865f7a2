"""`hack.cluster up` recovers from an interrupted `up`, and `down` undoes every change to the machine."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hack.cluster import build, node
from hack.cluster.paths import STATE
from hack.cluster.sandbox import MACHINE_WIDE
from tests.e2e.conftest import cluster_tool

# Folders to which container programs write outside a sandbox.
FOLDERS = ("/etc", "/etc/cni", "/opt", "/run", "/var/lib", "/var/lib/cni", "/var/lib/kubelet", "/var/log")
ON_THIS_MACHINE = pytest.mark.skipif("KUBECONFIG" in os.environ, reason="KUBECONFIG names another cluster")
SETTINGS = (*MACHINE_WIDE, "net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet", "net/netfilter/nf_conntrack_max")
pytestmark = pytest.mark.long  # the other end-to-end tests use the cluster; run these after a change of hack/cluster


def lines_of(*command: str) -> set[str]:
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())


def namespaces() -> set[str]:
    """The namespaces of all processes except zombies, which the machine's first process may reap late."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/*"):
        try:
            os.readlink(link.parent.parent / "exe")
            found.add(os.readlink(link))
        except OSError:
            continue
    return found


def cluster_processes() -> set[str]:
    """The command lines with one of the tool's folders; other processes may start and end at any time."""
    lines = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return {line for line in lines if str(STATE) in line or str(build.binaries()) in line}


def machine() -> dict[str, set[str]]:
    """The parts of the machine's state that a cluster might change."""
    return {
        "processes": cluster_processes(),
        "namespaces": namespaces(),
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "interfaces": {path.name for path in Path("/sys/class/net").iterdir()},
        "rules": {line.split(" [")[0] for line in lines_of("iptables-save") if line[0] != "#"},
        "rules for IPv6": {line.split(" [")[0] for line in lines_of("ip6tables-save") if line[0] != "#"},
        "routes": lines_of("ip", "route", "show", "table", "all"),
        "settings": {f"{name}={Path('/proc/sys', name).read_text()}" for name in SETTINGS},
        "cgroups": {str(path) for path in Path("/sys/fs/cgroup").glob("*/*") if path.is_dir()},
        "files": {str(path) for folder in FOLDERS for path in Path(folder).glob("*")},
        "hosts": lines_of("cat", "/etc/hosts", "/etc/resolv.conf"),
        "state": {str(path) for path in STATE.glob("*")},
    }


@pytest.mark.alone
@ON_THIS_MACHINE
def test_down_leaves_the_machine_as_it_was() -> None:
    if cluster_tool("status").returncode == 0:
        pytest.skip("a throw-away cluster is running and may be in use: `make cluster-down` stops it")
    assert cluster_tool("down").returncode == 0
    before = machine()

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", node.PORT))
        taken.listen()
        failed = cluster_tool("up")
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1), failed.stderr
    assert f"port {node.PORT} of 127.0.0.1 is in use" in failed.stderr
    assert cluster_tool("down").returncode == 0
    failed = cluster_tool("add-node")
    assert (failed.returncode, failed.stderr) == (1, "cluster: no cluster is running: `up` starts one.\n")
    assert machine() == before

    with subprocess.Popen([sys.executable, "-m", "hack.cluster", "up"], stdout=subprocess.PIPE) as killed:
        while not {"kube-apiserver", "containerd"} <= node.SANDBOX.programs():
            assert killed.poll() is None
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    assert cluster_tool("up").returncode == 0
    assert cluster_tool("status").returncode == 0

    first = node.SANDBOX.first_process()
    assert first
    for process in psutil.Process(first).children():
        if process.name() == "kube-scheduler":
            process.kill()
    assert "kube-scheduler                   not running" in cluster_tool("status").stdout
    assert cluster_tool("up").returncode == 0
    assert cluster_tool("add-node").returncode == 0
    status = cluster_tool("status")
    assert (status.returncode, "kubelet-1                        running" in status.stdout) == (0, True), status.stdout

    assert cluster_tool("down").returncode == 0
    assert machine() == before
    assert cluster_tool("down").returncode == 0
    assert machine() == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["start"], "invalid command 'start'"),
        ([], "invalid command ''"),
        (["load"], "invalid command 'load'"),
    ],
)
def test_an_invalid_command_is_reported_in_one_sentence(words: list[str], sentence: str) -> None:
    done = cluster_tool(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert sentence in done.stderr


@ON_THIS_MACHINE
def test_an_absent_image_is_named(kubeconfig: Path) -> None:
    done = cluster_tool("load", "absent:1")
    assert done.returncode == 2
    assert "has no image absent:1" in done.stderr
