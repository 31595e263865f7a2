"""A box: a first process with process, mount and network namespaces of its own, in which other programs are started.

Interfaces, firewall rules and mounts made in a box are the box's own; its system folders are overlays that are thrown
away; its processes cannot outlive its first one. So ending that one process undoes all of it, however far a start had
come. The way out to the network is slirp4netns, an ordinary process that needs no rule and no interface outside.

Used by `docker` and `kubernetes`. Outside of the box it writes under STATE, and makes and removes its own cgroups.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from tests.cluster.errors import ClusterError, UsageError
from tests.cluster.places import STATE, SYSTEM_PATH
from tests.cluster.waiting import until

ADDRESS = "10.0.2.100"
"""slirp4netns gives this address to the inside of every box; each box has its own network, so they never meet."""

INTERFACE = "tap0"
"""The interface that leads out of a box."""

MTU = 65520
"""Bytes; that of this interface, slirp4netns's largest. Pods take it over."""

CGROUPS = Path("/sys/fs/cgroup")

# dockerd and the kubelet set these for the whole machine; in the box they write to plain files laid over them.
MACHINE_WIDE = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


@dataclass(frozen=True)
class Box:
    """One box, found again by its name: nothing about it is remembered but what the kernel knows."""

    name: str
    overlays: tuple[str, ...]
    """System folders that programs in the box may write to at will."""
    port: int | None = None
    """A port of this machine's own 127.0.0.1 that leads to the same port of the box."""

    @property
    def folder(self) -> Path:
        """Where the box's programs keep their files, under the same path inside and outside."""
        return STATE / self.name

    @property
    def cgroup(self) -> str:
        """The cgroup that containers of this box belong under."""
        return f"distributed-tensorflow-{self.name}"

    @property
    def _holder(self) -> list[str]:
        # SIGCHLD ignored stays ignored across exec: so `sleep` reaps the orphans of the box, as a first process must.
        kept_apart = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=slave"]
        return ["unshare", *kept_apart, "sh", "-c", "trap '' CHLD; exec sleep infinity", f"box {self.folder}"]

    @property
    def _network_socket(self) -> Path:
        return self.folder / "network.sock"

    def first_process(self) -> int | None:
        """The process id, on this machine, of the box's first process; None when there is no box."""
        for holder in _processes(self._holder):
            try:
                children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
            except OSError:
                continue  # it has ended in this moment
            if children:
                return int(children[0])
        return None

    def start(self) -> None:
        """Make the box if there is none.

        Raises:
            UsageError: the box's folder lies where the box covers this machine's folders.
            ClusterError: the box gets no network, or its port is taken.
        """
        for covered in ("/run", *self.overlays):
            if self.folder.is_relative_to(covered):
                raise UsageError(f"{self.folder} cannot lie under {covered}: set XDG_CACHE_HOME to another folder.")
        complete = self.folder / "complete"
        if complete.exists() and self.first_process():
            return
        self.stop()  # a start that was killed half way
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with (self.folder / "first.log").open("wb") as output:  # never the caller's own, which may be a pipe
            subprocess.Popen(
                self._holder, start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if not until(self._first_process_is_at_rest, 10):
            raise ClusterError(f"no namespaces can be made here: try `{' '.join(self._holder[:8])} true`.")
        self._connect()
        self._cover()
        for cgroup in self._cgroups():
            cgroup.mkdir(exist_ok=True)
        if (controllers := CGROUPS / "cgroup.controllers").exists():  # version 2 passes on only what is asked for
            wanted = " ".join(f"+{controller}" for controller in controllers.read_text().split())
            (CGROUPS / "cgroup.subtree_control").write_text(wanted)
        complete.touch()

    def _first_process_is_at_rest(self) -> bool:
        first = self.first_process()
        return bool(first) and (_readlink(f"/proc/{first}/exe") or "").endswith("/sleep")

    def _connect(self) -> None:
        first = self.first_process()
        log = self.folder / "network.log"
        options = ["--configure", f"--mtu={MTU}", "--disable-host-loopback"]
        with log.open("wb") as output:
            subprocess.Popen(
                ["slirp4netns", *options, "--api-socket", str(self._network_socket), str(first), INTERFACE],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        devices = Path(f"/proc/{first}/net/dev")
        if not until(lambda: self._network_socket.exists() and INTERFACE in devices.read_text(), 10):
            raise ClusterError(f"the box {self.name} has no network; slirp4netns said:\n{tail(log)}")
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
            raise ClusterError(f"port {port} of 127.0.0.1 is taken: end what listens on it (ss -ltnp) and try again.")

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
        # 10.0.2.3 is slirp4netns's relay to this machine's resolver; no search list, which would leak into the pods
        lines += ["rm -f /etc/resolv.conf", "echo nameserver 10.0.2.3 > /etc/resolv.conf"]
        lines += ["echo 1 > /proc/sys/net/ipv4/ip_forward"]
        self.run(["sh", "-ec", "\n".join(lines)])

    def _enter(self, command: Sequence[str | Path]) -> list[str]:
        first = self.first_process()
        if not first:
            raise ClusterError(f"the box {self.name} does not run: `up` starts it.")
        return ["nsenter", f"--target={first}", "--mount", "--net", "--pid", *map(str, command)]

    def run(self, command: Sequence[str | Path], stdin: int | IO[bytes] | None = subprocess.DEVNULL) -> str:
        """Run a command in the box and return what it printed.

        Raises:
            ClusterError: it failed.
        """
        done = subprocess.run(self._enter(command), stdin=stdin, capture_output=True, text=True, env=environment())
        if done.returncode:
            raise ClusterError(f"{Path(command[0]).name} failed in the box {self.name}:\n{done.stderr[-1500:]}")
        return done.stdout

    def spawn(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a program that stays in the box when this tool has ended; its output goes to the log of this name."""
        with self.log(name).open("ab") as output:
            subprocess.run(
                self._enter(["setsid", "--fork", *command]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                check=True,
            )
        # setsid leaves before its child has become the program (a process in the midst of that has no name at all), and
        # who looked for it now would find it missing; one that is not there by then has ended
        until(lambda: name in self.programs(), 2)

    def log(self, name: str) -> Path:
        """The log of a program that `spawn` started."""
        return self.folder / f"{name}.log"

    def programs(self) -> set[str]:
        """The names of the programs that run in the box."""
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
        """End the box and all that is in it; nothing happens when there is none."""
        if first := self.first_process():
            _end(first)  # which ends after all others in the box, and its holder after it
            until(lambda: not _processes(self._holder), 5)
        for holder in _processes(self._holder):
            _end(holder)  # one that had not come to make the first process
        for process, arguments in _command_lines():
            if arguments[0] == b"slirp4netns" and os.fsencode(self._network_socket) in arguments:
                _end(process)
        for cgroup in self._cgroups():
            _remove_cgroup(cgroup)

    def _cgroups(self) -> list[Path]:
        """Version 2 has one hierarchy; version 1 has one for each controller."""
        if (CGROUPS / "cgroup.controllers").exists():
            return [CGROUPS / self.cgroup]
        return [path / self.cgroup for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def environment() -> dict[str, str]:
    """The environment of every program of the cluster."""
    return os.environ | {"PATH": SYSTEM_PATH}


def tail(log: Path) -> str:
    """The last lines of a log, to follow the sentence that says what went wrong."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:]) if log.exists() else "(nothing)"


def _command_lines() -> list[tuple[int, list[bytes]]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")))
            except OSError:
                continue  # it has ended in this moment
    return found


def _processes(command: Sequence[str]) -> list[int]:
    """The processes whose command line is exactly this one, so that no other process can be meant."""
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
    if not until(lambda: _readlink(f"/proc/{process}/exe") is None, 15):  # true of a zombie as well
        raise ClusterError(f"process {process} was killed and does not end: /proc/{process}/stack says what holds it.")


def _remove_cgroup(cgroup: Path) -> None:
    for path in [*sorted((path for path in cgroup.rglob("*") if path.is_dir()), reverse=True), cgroup]:
        until(partial(_removed, path), 5)  # the kernel takes a moment to see that its processes are gone


def _removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
