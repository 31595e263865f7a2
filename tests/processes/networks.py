"""Network namespaces in which tests start tasks: each has an address of its own, and can be cut off from the others.

A cut drops packets without an answer, like a broken switch or a firewall. It needs Linux, root and iproute2.
"""

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

SUBNET = "10.123.0"


def why_unavailable() -> str:
    """Why this machine cannot make network namespaces; empty if it can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with network():
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr.strip()}"


class Network:
    """A switch, and the namespaces that it connects."""

    def __init__(self) -> None:
        self._prefix = f"t{uuid.uuid4().hex[:6]}"
        self._switch = f"{self._prefix}-switch"
        self._numbers: dict[str, int] = {}

    def add(self, name: str) -> str:
        """Add a namespace; return its address."""
        number = self._numbers[name] = len(self._numbers) + 1
        ip("netns", "add", self._namespace(name))
        link = ["type", "veth", "peer", "name", "eth0", "netns", self._namespace(name)]
        ip("link", "add", f"port{number}", "netns", self._switch, *link)
        self._in(name, "link", "set", "lo", "up")
        self._in(name, "link", "set", "eth0", "up")
        ip("-n", self._switch, "link", "set", f"port{number}", "master", "bridge", "up")
        address = f"{SUBNET}.{number}"
        self._in(name, "address", "add", f"{address}/24", "dev", "eth0")
        return address

    def command(self, name: str) -> list[str]:
        """The words that start a program in a namespace."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def cut(self, name: str) -> None:
        """Drop all packets from and to a namespace."""
        ip("-n", self._switch, "link", "set", f"port{self._numbers[name]}", "nomaster")

    def mend(self, name: str) -> None:
        """End the cut."""
        ip("-n", self._switch, "link", "set", f"port{self._numbers[name]}", "master", "bridge")

    def change_address(self, name: str, number: int) -> str:
        """Give a namespace another address; return it."""
        self._in(name, "address", "flush", "dev", "eth0")
        self._in(name, "address", "add", f"{SUBNET}.{number}/24", "dev", "eth0")
        return f"{SUBNET}.{number}"

    def publish(self, addresses: Mapping[str, str]) -> None:
        """Make these the addresses of names, for programs that were started after the first call."""
        lines = [f"{address} {host}\n" for host, address in {"localhost": "127.0.0.1", **addresses}.items()]
        for name in self._numbers:
            folder = self._etc(name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text("".join(lines))  # in place: it is mounted over /etc/hosts of running programs

    def connections(self, name: str) -> list[str]:
        """The TCP connections between a namespace and the others, as `ss` prints them."""
        words = [*self.command(name), "ss", "--tcp", "--numeric", "--no-header", "state", "established"]
        lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
        return [line for line in lines if line.split()[3].count(SUBNET) and line.split()[2] != line.split()[3]]

    def begin(self) -> None:
        """Make the switch."""
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")

    def end(self) -> None:
        """Remove all namespaces."""
        for name in self._numbers:
            shutil.rmtree(self._etc(name), ignore_errors=True)
        for namespace in [*map(self._namespace, self._numbers), self._switch]:
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _etc(self, name: str) -> Path:
        """The files that `ip netns exec` mounts over those of /etc."""
        return Path("/etc/netns", self._namespace(name))

    def _in(self, name: str, *words: str) -> None:
        ip("-n", self._namespace(name), *words)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network without namespaces, which are removed at the end."""
    made = Network()
    try:
        made.begin()
        yield made
    finally:
        made.end()


def ip(*words: str) -> None:
    """Run `ip WORDS…`."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
