"""The kernel's options on connections to other tasks, on real sockets."""

import os
import socket
from collections.abc import Iterator

import pytest

from trainer.cluster import connections

LOOK_UP = "grpc.dns_min_time_between_resolutions_ms"
AGAIN = "grpc.testing.fixed_reconnect_backoff_ms=200"


def user_timeout(found: socket.socket) -> int:
    return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """Both ends of a connection, and the port of the end that listened."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as server:
            yield client, server, port


def test_both_ends_of_a_connection_have_the_options(connection: tuple[socket.socket, socket.socket, int]) -> None:
    client, server, port = connection
    assert connections.set_options({port}) == 2
    for end in (client, server):
        assert user_timeout(end) == 1000 * connections.TIMEOUT_SECONDS
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert connections.set_options({port}) == 0


def test_the_connection_goes_on(connection: tuple[socket.socket, socket.socket, int]) -> None:
    client, server, port = connection
    connections.set_options({port})
    client.sendall(b"data")
    assert server.recv(4) == b"data"


def test_other_connections_are_left_alone(connection: tuple[socket.socket, socket.socket, int]) -> None:
    client, server, _ = connection
    assert connections.set_options({1}) == 0
    assert user_timeout(client) == user_timeout(server) == 0


def test_an_attempt_to_connect_ends_soon() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        attempts = [socket.socket() for _ in range(4)]  # more than the queue holds: the kernel drops the others
        try:
            for each in attempts:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            connections.set_options({port})
            syncnt = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT) for each in attempts]
            assert 1 in syncnt
            with socket.socket() as other:
                assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT) != 1
        finally:
            for each in attempts:
                each.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", f"{LOOK_UP}=1000,{AGAIN}"),
        ("grpc.min_reconnect_backoff_ms=5", f"grpc.min_reconnect_backoff_ms=5,{LOOK_UP}=1000,{AGAIN}"),
        (f"{LOOK_UP}=7", f"{LOOK_UP}=7,{AGAIN}"),
    ],
)
def test_a_new_address_is_looked_up_soon_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    monkeypatch.setenv(connections.VARIABLE, given)
    for _ in range(2):  # a process that executes itself again
        connections.configure()
        assert os.environ[connections.VARIABLE] == expected
