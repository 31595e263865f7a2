"""A port that is held is nobody else's, refuses whoever calls, and is the server's that shares it."""

import resource
import socket
import subprocess
import sys

import pytest

from trainer.cluster import ports
from trainer.errors import ConfigurationError

SERVER = """
import sys, tensorflow as tf
server = tf.distribute.Server({"local": ["localhost:" + sys.argv[1]]}, job_name="local", task_index=0)
tf.compat.v1.Session(server.target, graph=tf.Graph()).list_devices()
"""


def test_held_ports_are_all_different() -> None:
    with ports.hold(50) as held:
        assert len(set(held)) == 50


def test_more_ports_than_the_limit_of_open_files_allows_are_refused_in_a_sentence() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with (
            pytest.raises(ConfigurationError, match=r"300 tasks need a port each.*Too many open files"),
            ports.hold(300),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_held_port_is_nobody_elses_until_it_is_let_go() -> None:
    with ports.hold(1) as (port,), socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    with socket.socket() as other:
        other.bind(("", port))


def test_nobody_answers_at_a_held_port() -> None:
    with ports.hold(1) as (port,), socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("localhost", port))


def test_tensorflows_server_listens_on_a_held_port_if_told_to_share_it() -> None:
    with ports.hold(1) as (port,):
        command = [sys.executable, "-c", SERVER, str(port)]
        assert subprocess.run(command, env=ports.SHARED, capture_output=True).returncode == 0
        assert subprocess.run(command, env={}, capture_output=True).returncode != 0
