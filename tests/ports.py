"""Free ports for what tests and benchmarks start on this machine, which may listen there a while later.

They lie below those that Linux gives to whoever asks for any port, and each process of pytest has its own, so that
nobody gets one in between.
"""

import contextlib
import itertools
import os
import socket

_EACH = 1000
_NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_OFFSETS = itertools.count(os.getpid())  # not where another run of the tests begins


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, all different."""
    ports: list[int] = []
    while len(ports) < count:
        port = 10000 + _NUMBER * _EACH + next(_OFFSETS) % _EACH
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            ports.append(port)
    return ports
