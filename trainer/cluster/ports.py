"""Ports of this machine for the tasks that `trainer launch` starts on it."""

import contextlib
import os
import socket
from collections.abc import Iterator

from trainer.errors import ConfigurationError

SHARED = {"TF_GRPC_REUSE_PORT": "true"}
"""Environment in which TensorFlow's server listens on a port that is held."""


@contextlib.contextmanager
def hold(count: int) -> Iterator[list[int]]:
    """So many free ports, all different, which until the end nobody gets who asks for any free port.

    They are bound, but nobody listens on them until a server does that shares them. A port that is merely found free
    may be another's by the time a task has imported TensorFlow, and one whose task has died before it is back.

    Raises:
        ConfigurationError: this machine has not so many.
    """
    with contextlib.ExitStack() as stack:
        try:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for each in sockets:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                each.bind(("", 0))
        except OSError as error:
            raise ConfigurationError(
                f"--ps, --workers: {count} tasks need a port each, and this machine does not give as many "
                f"({error.strerror}); start fewer, or raise the limit of open files (ulimit -n)."
            ) from None
        yield [each.getsockname()[1] for each in sockets]


def are_shared() -> bool:
    """Whether TensorFlow's server in this process may listen on a port that is held."""
    return os.environ.items() >= SHARED.items()
