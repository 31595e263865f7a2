"""The throw-away cluster's nodes as faults see them: their programs, and the containers of a pod.

Faults need what only the node has: signals to a container's program, a pod's network namespace, logs while the API
server is away. So they run on the cluster of `hack.cluster` only, and as root.
"""

import contextlib
import glob
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.faults.cluster import FaultError
from hack.cluster.node import SANDBOX

VOLUMES = SANDBOX.folder / "volumes"
DNS, API_SERVER, KUBELET = "coredns", "kube-apiserver", "kubelet"


def pod_logs(namespace: str) -> list[tuple[str, Path]]:
    """The log files of all containers in a namespace, with the name of their pod."""
    root = f"/proc/{SANDBOX.first_process()}/root/var/log"
    # Not Path.glob, which raises an error if the kubelet removes the folder of a deleted pod meanwhile.
    paths = map(Path, glob.glob(f"{root}/pods*/{namespace}_*/*/*.log"))
    return [(path.parent.parent.name.split("_")[1], path) for path in paths]


def programs_of_pod(uid: str) -> list[psutil.Process]:
    """The Python programs of a pod's containers: not its shell, `tee` or the pause container."""
    return [process for process in _processes_of_pod(uid) if "python" in _program(process)]


def _program(process: psutil.Process) -> str:
    """The file name of a process's program; empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        return Path("".join(process.cmdline()[:1])).name
    return ""


def network_of_pod(uid: str) -> int:
    """The id of a process in the pod's network namespace.

    Raises:
        FaultError: no process of the pod runs.
    """
    for process in _processes_of_pod(uid):
        return process.pid
    raise FaultError(f"no process of the pod {uid} runs on this machine")


def _processes_of_pod(uid: str) -> list[psutil.Process]:
    names = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            cgroups = Path(f"/proc/{process.pid}/cgroup").read_text()
            if any(name in cgroups for name in names) and process.cmdline():
                found.append(process)
    return found


def cut_off(process: int) -> None:
    """Drop all packets of the network namespace of a process, except those of its loopback interface."""
    for chain, direction in (("INPUT", "-i"), ("OUTPUT", "-o")):
        _iptables(process, "-I", chain, "!", direction, "lo", "-j", "DROP")


def reconnect(process: int) -> None:
    """Undo `cut_off`."""
    for chain, direction in (("INPUT", "-i"), ("OUTPUT", "-o")):
        _iptables(process, "-D", chain, "!", direction, "lo", "-j", "DROP")


def _iptables(process: int, *words: str) -> None:
    subprocess.run(["nsenter", f"--target={process}", "--net", "iptables", *words], check=True, capture_output=True)


def send_signal(programs: Sequence[str], number: int) -> None:
    """Send a signal to programs of the node, such as the kubelet.

    Raises:
        FaultError: one of them does not run.
    """
    first = SANDBOX.first_process()
    if not first:
        raise FaultError("the throw-away cluster does not run: `make cluster-up` starts it")
    own = os.readlink(f"/proc/{first}/ns/pid")
    targets = {}
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.readlink(f"/proc/{process.pid}/ns/pid") == own and process.cmdline():
                targets[Path(process.cmdline()[0]).name] = process
    for name in programs:
        if name not in targets:
            raise FaultError(f"{name} does not run on the node")
        targets[name].send_signal(number)


def stop_everything() -> None:
    """Kill every program and every container of the node, as its sudden reboot would."""
    first = SANDBOX.first_process()
    namespace = Path(f"/proc/{first}/ns/pid").stat().st_ino
    inside = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            parents = [process, *process.parents()]
            if process.pid != first and any(
                Path(f"/proc/{each.pid}/ns/pid").stat().st_ino == namespace for each in parents
            ):
                inside.append(process)
    for process in inside:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def start_everything() -> None:
    """Start the programs of the first node that do not run.

    Raises:
        FaultError: one of them does not start.
    """
    _cluster_tool("up")


def start_second(image: str) -> None:
    """Start the second node with this image, unless it runs.

    Raises:
        FaultError: it does not start.
    """
    _cluster_tool("add-node", image)


def _cluster_tool(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "hack.cluster", *words], capture_output=True, text=True)
    if done.returncode:
        raise FaultError(f"the cluster does not start: {done.stdout[-500:]}{done.stderr[-500:]}")
