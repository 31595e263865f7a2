"""A reserved port belongs to no other process, refuses connections, and can be shared by a server."""

import resource
import socket
import subprocess
import sys

import pytest

from trainer.cluster import ports
from trainer.errors import ConfigurationError

SERVER = """
import sys
from trainer.tensorflow import tf
server = tf.distribute.Server({"local": ["localhost:" + sys.argv[1]]}, job_name="local", task_index=0)
tf.compat.v1.Session(server.target, graph=tf.Graph()).list_devices()
"""


def test_reserved_ports_are_distinct() -> None:
    with ports.reserve(50) as reserved:
        assert len(set(reserved)) == 50


def test_more_ports_than_the_limit_of_open_files_allows_are_refused_in_a_sentence() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with (
            pytest.raises(ConfigurationError, match=r"300 tasks need a port each.*Too many open files"),
            ports.reserve(300),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_other_process_can_bind_a_reserved_port() -> None:
    with ports.reserve(1) as (port,), socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    with socket.socket() as other:
        other.bind(("", port))


def test_a_reserved_port_refuses_connections() -> None:
    with ports.reserve(1) as (port,), socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("localhost", port))


@pytest.mark.slow
def test_tensorflows_server_listens_on_a_reserved_port_with_the_sharing_environment() -> None:
    with ports.reserve(1) as (port,):
        command = [sys.executable, "-c", SERVER, str(port)]
        assert subprocess.run(command, env=ports.SHARING_ENVIRONMENT, capture_output=True).returncode == 0
        assert subprocess.run(command, env={}, capture_output=True).returncode != 0
