"""Probes of other tasks: which accept connections, and why others do not."""

import http.server
import socket
import threading

import pytest

from trainer.cluster import peers, poll
from trainer.errors import ConfigurationError, LostPeersError

from .conftest import GrpcServer, Servers, address_of

NOBODY = "no-such-host.invalid:2222"


def never() -> bool:
    return False


def test_a_listener_has_no_probe_error(answering: str) -> None:
    assert peers.probe_error(answering) is None


def test_an_ipv6_address_may_have_brackets() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert peers.probe_error(f"[::1]:{listener.getsockname()[1]}") is None


def test_a_refused_connection_is_reported(refusing: str) -> None:
    assert "refused" in str(peers.probe_error(refusing))


def test_a_name_that_does_not_resolve_is_reported() -> None:
    assert "no-such-host.invalid does not resolve" in str(peers.probe_error(NOBODY))


def test_a_silent_address_is_reported(silent: str) -> None:
    assert "no answer within 0.5 s" in str(peers.probe_error(silent))


@pytest.mark.parametrize("host", ["double..dot", "x" * 64])
def test_an_invalid_name_is_reported(host: str) -> None:
    assert host in str(peers.probe_error(f"{host}:2222"))


def test_a_wait_for_tasks_that_answer_logs_nothing(servers: Servers, log_lines: list[str]) -> None:
    peers.wait_for({"ps 0": servers.ps[0], "ps 1": servers.ps[1]}, 60, never)
    assert log_lines == []


def test_another_program_at_the_address_of_a_task_is_named() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            address = address_of(other.socket)
            with pytest.raises(LostPeersError) as caught:
                peers.wait_for({"ps 0": address}, 0.1, never)
        finally:
            other.shutdown()
            thread.join()
    assert str(caught.value) == (
        f"ps 0 did not answer at {address} within 0.1 s: another program answers there, and not a TensorFlow server; "
        "start it, correct its address, or raise wait_seconds."
    )


def test_a_timeout_is_an_error_with_task_address_and_reason(refusing: str, servers: Servers) -> None:
    with pytest.raises(LostPeersError) as caught:
        peers.wait_for({"ps 0": servers.ps[0], "ps 1": refusing}, 0.1, never)
    assert f"ps 1 did not answer at {refusing} within 0.1 s: the connection is refused" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_one_of_several_lost_peers_is_named_and_the_others_are_counted(refusing: str) -> None:
    with pytest.raises(LostPeersError, match=r"ps 0 \(and 2 more\) did not answer"):
        peers.wait_for({f"ps {index}": refusing for index in range(3)}, 0.1, never)


def test_a_long_wait_is_logged_for_each_silent_task(
    refusing: str, servers: Servers, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "MESSAGE_INTERVAL_SECONDS", 600.0)
    with pytest.raises(LostPeersError):
        peers.wait_for({"ps 0": servers.ps[0], "ps 1": refusing, "ps 2": NOBODY}, 1.5, never)
    assert len(log_lines) == 2  # once each, as the next message would be due in ten minutes
    assert log_lines[0].startswith(f"waiting for ps 1 at {refusing}: the connection is refused")
    assert log_lines[1].startswith(f"waiting for ps 2 at {NOBODY}: the name no-such-host.invalid does not resolve")


def test_a_late_task_ends_the_wait(servers: Servers) -> None:
    """The late one passes what it gets on to a server."""
    host, _, port = servers.ps[0].rpartition(":")

    def serve(listener: socket.socket) -> None:
        listener.listen()
        with listener.accept()[0] as probe, socket.create_connection((host, int(port))) as server:
            server.sendall(probe.recv(100))
            probe.sendall(server.recv(100))

    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        coming = threading.Timer(0.7, serve, [late])
        coming.start()
        peers.wait_for({"ps 0": address_of(late)}, 60, never)
        coming.join()


def test_an_interrupted_wait_ends_without_an_error(refusing: str) -> None:
    peers.wait_for({"ps 0": refusing}, 600, lambda: True)
    peers.wait_for_own_name(NOBODY, 600, lambda: True)


def test_the_end_of_a_program_is_awaited(grpc_server: GrpcServer, refusing: str) -> None:
    killed = threading.Event()

    def kill() -> None:
        killed.set()
        grpc_server.process.kill()

    peers.wait_for_end(grpc_server.address, 0.5)
    threading.Timer(0.5, kill).start()
    peers.wait_for_end(grpc_server.address, 600)
    assert killed.is_set()
    peers.wait_for_end(refusing, 600)


def test_a_task_resolves_its_own_name(log_lines: list[str]) -> None:
    peers.wait_for_own_name("localhost:1", 600, never)
    peers.wait_for_own_name("[::1]:1", 600, never)
    assert log_lines == []


def test_a_task_whose_own_name_does_not_resolve_logs_it_and_times_out(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    monkeypatch.setattr(poll, "MESSAGE_INTERVAL_SECONDS", 0.3)
    with pytest.raises(LostPeersError, match=r"own name no-such-host.invalid does not resolve .* after 0.2 s"):
        peers.wait_for_own_name(NOBODY, 0.2, never)
    assert len(log_lines) == 1
    assert log_lines[0].startswith("waiting for this task's own name no-such-host.invalid to resolve")


def test_a_port_in_use_is_named(answering: str) -> None:
    port = answering.rpartition(":")[2]
    with pytest.raises(ConfigurationError, match=f"port {port} of this task's address localhost:{port}.*is used"):
        peers.check_port_is_free(f"localhost:{port}")


def test_a_port_that_was_just_used_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = address_of(listener)
        with socket.create_connection(listener.getsockname()), listener.accept()[0]:
            pass  # closed by the server's side first, it lingers in TIME_WAIT
    peers.check_port_is_free(address)
