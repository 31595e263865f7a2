"""A sandbox: an init process with its own process, mount and network namespaces, in which other programs run.

Interfaces, firewall rules and mounts belong to the sandbox. Its system folders are temporary overlays. Its processes
cannot outlive its init process. So killing that process undoes everything, even after an incomplete start. slirp4netns,
an ordinary process that needs no rule and no interface outside, connects the sandbox to the network.

`engine` and `kubernetes` use it. Outside the sandbox it writes to STATE, and creates and removes its own cgroups.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from hack.cluster.errors import ClusterError, UsageError
from hack.cluster.paths import STATE, SYSTEM_PATH
from hack.cluster.waiting import until

ADDRESS = "10.0.2.100"
"""slirp4netns gives this address to the interface of every sandbox, each of which has a network of its own."""

INTERFACE = "tap0"
"""The external interface of a sandbox."""

MTU = 65520
"""MTU of this interface in bytes, the maximum of slirp4netns. Pods inherit it."""

CGROUPS = Path("/sys/fs/cgroup")

# dockerd and the kubelet set these for the whole machine. In the sandbox, plain files are mounted over them.
MACHINE_WIDE = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


@dataclass(frozen=True)
class Sandbox:
    """A sandbox, identified by its name. Its only state is the kernel's."""

    name: str
    overlays: tuple[str, ...]
    """System folders that programs in the sandbox may write to."""
    port: int | None = None
    """A port of 127.0.0.1 on this machine that forwards to the same port of the sandbox."""

    @property
    def folder(self) -> Path:
        """The folder for files of the sandbox's programs; its path is the same inside and outside."""
        return STATE / self.name

    @property
    def cgroup(self) -> str:
        """The parent cgroup of the sandbox's containers."""
        return f"distributed-tensorflow-{self.name}"

    @property
    def _holder(self) -> list[str]:
        # exec keeps SIGCHLD ignored, so `sleep` reaps the orphans of the sandbox, as an init process must.
        namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=slave"]
        return ["unshare", *namespaces, "sh", "-c", "trap '' CHLD; exec sleep infinity", f"sandbox {self.folder}"]

    @property
    def _network_socket(self) -> Path:
        return self.folder / "network.sock"

    def first_process(self) -> int | None:
        """The process ID, on this machine, of the sandbox's init process; None if the sandbox is not running."""
        for holder in _processes(self._holder):
            try:
                children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
            except OSError:
                continue  # it has just exited
            if children:
                return int(children[0])
        return None

    def start(self) -> None:
        """Start the sandbox unless it is running.

        Raises:
            UsageError: the sandbox's folder is inside a folder that the sandbox covers.
            ClusterError: the sandbox cannot get namespaces or a network, or its port is in use.
        """
        for covered in ("/run", *self.overlays):
            if self.folder.is_relative_to(covered):
                raise UsageError(f"{self.folder} cannot be inside {covered}: set XDG_CACHE_HOME to another folder.")
        complete = self.folder / "complete"
        if complete.exists() and self.first_process():
            return
        self.stop()  # an incomplete start
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        _leave(self._holder, self.folder / "first.log")
        if not until(self._first_process_sleeps, 10):
            raise ClusterError(
                f"cannot create namespaces on this machine: to see why, run `{' '.join(self._holder[:8])} true`."
            )
        self._connect()
        self._cover()
        for cgroup in self.cgroups():
            cgroup.mkdir(exist_ok=True)
        if (controllers := CGROUPS / "cgroup.controllers").exists():  # version 2 delegates only the listed controllers
            enabled = " ".join(f"+{controller}" for controller in controllers.read_text().split())
            (CGROUPS / "cgroup.subtree_control").write_text(enabled)
        complete.touch()

    def _first_process_sleeps(self) -> bool:
        first = self.first_process()
        return bool(first) and (_readlink(f"/proc/{first}/exe") or "").endswith("/sleep")

    def _connect(self) -> None:
        first = self.first_process()
        log = self.folder / "network.log"
        options = ["--configure", f"--mtu={MTU}", "--disable-host-loopback"]
        _leave(["slirp4netns", *options, "--api-socket", str(self._network_socket), str(first), INTERFACE], log)
        devices = Path(f"/proc/{first}/net/dev")
        if not until(lambda: self._network_socket.exists() and INTERFACE in devices.read_text(), 10):
            raise ClusterError(f"the sandbox {self.name} has no network; the log of slirp4netns ends:\n{tail(log)}")
        if self.port:
            self._forward(self.port)

    def _forward(self, port: int) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._network_socket))
            arguments = {"proto": "tcp", "host_addr": "127.0.0.1", "host_port": port, "guest_port": port}
            connection.sendall(json.dumps({"execute": "add_hostfwd", "arguments": arguments}).encode())
            connection.shutdown(socket.SHUT_WR)
            answer = json.loads(connection.makefile().read())
        if "error" in answer:
            raise ClusterError(
                f"port {port} of 127.0.0.1 is in use: stop the process that listens on it (ss -ltnp) and try again."
            )

    def _cover(self) -> None:
        lines = ["mount -t tmpfs tmpfs /run"]
        for target in self.overlays:
            layers = self.folder / "overlays" / target.replace("/", "_")
            upper, work = layers / "upper", layers / "work"
            upper.mkdir(parents=True)
            work.mkdir()
            lines.append(f"mount -t overlay overlay -o lowerdir={target},upperdir={upper},workdir={work} {target}")
        for name in MACHINE_WIDE:
            cover = self.folder / "sysctl" / name
            cover.parent.mkdir(parents=True, exist_ok=True)
            cover.write_text(Path("/proc/sys", name).read_text())
            lines.append(f"mount --bind {cover} /proc/sys/{name}")
        # 10.0.2.3 is slirp4netns's relay to this machine's resolver. A search list would leak into the pods.
        lines += ["rm -f /etc/resolv.conf", "echo nameserver 10.0.2.3 > /etc/resolv.conf"]
        lines += ["echo 1 > /proc/sys/net/ipv4/ip_forward"]
        self.run(["sh", "-ec", "\n".join(lines)])

    def _enter(self, command: Sequence[str | Path], namespaces: Sequence[str] = ("mount", "net", "pid")) -> list[str]:
        first = self.first_process()
        if not first:
            raise ClusterError(f"the sandbox {self.name} is not running: `up` starts it.")
        return ["nsenter", f"--target={first}", *(f"--{name}" for name in namespaces), *map(str, command)]

    def run(self, command: Sequence[str | Path], stdin: int | IO[bytes] | None = subprocess.DEVNULL) -> str:
        """Run a command in the sandbox and return its standard output.

        Raises:
            ClusterError: the command failed.
        """
        done = subprocess.run(self._enter(command), stdin=stdin, capture_output=True, text=True, env=environment())
        if done.returncode:
            raise ClusterError(f"{Path(command[0]).name} failed in the sandbox {self.name}:\n{done.stderr[-1500:]}")
        return done.stdout

    def spawn(self, name: str, program: str | Path, arguments: Sequence[str]) -> None:
        """Start a program that keeps running in the sandbox after this tool exits.

        `name` is the name by which `programs` lists it; its output goes to the log of this name.
        """
        with self.log(name).open("ab") as output:
            subprocess.run(
                self._enter(["setsid", "--fork", "bash", "-c", 'exec -a "$0" "$@"', name, program, *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                check=True,
            )
        # setsid exits before its child has executed the program, and during exec a process has no name. Wait for the
        # name, so that the next call of `programs` lists it. A program without its name by then has exited.
        until(lambda: name in self.programs(), 2)

    def child(
        self, command: Sequence[str | Path], log: Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in the network and the file system of the sandbox, as a child process of this one."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self._enter(command, ("mount", "net")),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment() | dict(variables or {}),
            )

    def log(self, name: str) -> Path:
        """The log file of a program that `spawn` started."""
        return self.folder / f"{name}.log"

    def programs(self) -> set[str]:
        """The names of the programs running in the sandbox."""
        first = self.first_process()
        if not first:
            return set()
        own = os.readlink(f"/proc/{first}/ns/pid")
        return {
            Path(os.fsdecode(arguments[0])).name
            for process, arguments in _command_lines()
            if _readlink(f"/proc/{process}/ns/pid") == own
        }

    def stop(self) -> None:
        """Stop the sandbox and all its processes. Do nothing if it is not running."""
        if first := self.first_process():
            _end(first)  # the kernel kills all other processes of the sandbox first; its holder exits last
            until(lambda: not _processes(self._holder), 5)
        for holder in _processes(self._holder):
            _end(holder)  # a holder without an init process
        for process, arguments in _command_lines():
            if arguments[0] == b"slirp4netns" and os.fsencode(self._network_socket) in arguments:
                _end(process)
        for cgroup in self.cgroups():
            _remove_cgroup(cgroup)

    def cgroups(self) -> list[Path]:
        """The sandbox's cgroups: version 2 has one hierarchy, version 1 has one per controller."""
        if (CGROUPS / "cgroup.controllers").exists():
            return [CGROUPS / self.cgroup]
        return [path / self.cgroup for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _leave(command: Sequence[str], log: Path) -> None:
    """Start a program that is no child of this process. It never gets the caller's output, which may be a pipe."""
    with log.open("wb") as output:
        subprocess.run(
            ["setsid", "--fork", *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True
        )


def environment() -> dict[str, str]:
    """The environment for every program of the cluster."""
    return os.environ | {"PATH": SYSTEM_PATH}


def tail(log: Path) -> str:
    """The last lines of a log, to append to an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:]) if log.exists() else "(nothing)"


def _command_lines() -> list[tuple[int, list[bytes]]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")))
            except OSError:
                continue  # it has just exited
    return found


def _processes(command: Sequence[str]) -> list[int]:
    """The processes with exactly this command line; the exact match excludes all other processes."""
    wanted = [*map(os.fsencode, command), b""]
    return [process for process, arguments in _command_lines() if arguments == wanted]


def _readlink(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _end(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    if not until(lambda: _readlink(f"/proc/{process}/exe") is None, 15):  # also true of a zombie
        raise ClusterError(
            f"process {process} does not exit after SIGKILL: /proc/{process}/stack shows where it hangs."
        )


def _remove_cgroup(cgroup: Path) -> None:
    for path in [*sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True), cgroup]:
        until(partial(_removed, path), 5)  # the kernel may report exited processes for a moment


def _removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
