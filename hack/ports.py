"""Free ports for the processes that tests and benchmarks start on this machine.

A process may listen on its port some time after it gets the number. So that no other process takes the port in between,
ports lie below the ephemeral range of Linux, and each pytest worker has its own range.
"""

import contextlib
import itertools
import os
import socket

_RANGE_SIZE = 1000
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_OFFSETS = itertools.count(os.getpid())  # concurrent runs of the tests start at different offsets


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that are free now."""
    ports: list[int] = []
    while len(ports) < count:
        port = 10000 + _WORKER * _RANGE_SIZE + next(_OFFSETS) % _RANGE_SIZE
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            ports.append(port)
    return ports
