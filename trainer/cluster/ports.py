"""Ports of this machine for the tasks that `trainer launch` starts on it."""

import contextlib
import os
import socket
from collections.abc import Iterator

from trainer.errors import ConfigurationError

SHARING_ENVIRONMENT = {"TF_GRPC_REUSE_PORT": "true"}
"""The environment with which TensorFlow's server can listen on a reserved port."""


@contextlib.contextmanager
def reserve(count: int) -> Iterator[list[int]]:
    """Reserve `count` free, distinct ports until the context ends.

    The sockets are bound with SO_REUSEPORT but do not listen, so only a server that shares its port can use them.
    Without a reservation another process could take the port while a task imports TensorFlow or restarts.

    Raises:
        ConfigurationError: this machine does not provide `count` ports.
    """
    with contextlib.ExitStack() as stack:
        try:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for each in sockets:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                each.bind(("", 0))
        except OSError as error:
            raise ConfigurationError(
                f"--ps, --workers: {count} tasks need a port each, and this machine does not provide as many "
                f"({error.strerror}); start fewer, or raise the limit of open files (ulimit -n)."
            ) from None
        yield [each.getsockname()[1] for each in sockets]


def are_shareable() -> bool:
    """Return whether TensorFlow's server in this process can listen on a reserved port."""
    return os.environ.items() >= SHARING_ENVIRONMENT.items()
