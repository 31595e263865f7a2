"""Watches of an API server that refuses them: a real HTTP server, and the real client."""

import http.server
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from lightkube import Client
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import Pod

from tests.unit.test_supervision import a_run
from trainer.supervisor import watches
from trainer.supervisor.connection import Connection

pytestmark = pytest.mark.slow

POOL = 100
"""The connections that the client keeps at most."""


INITIALIZING = (429, {"kind": "Status", "code": 429, "message": "initializing"})
"""The answer of an API server whose cache is not ready."""
EXPIRED = (
    200,
    {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version: 1 (2)"}},
)
"""The stream of an API server that has forgotten the version from which it should go on."""


class Refusing(http.server.BaseHTTPRequestHandler):
    """Lists nothing, and answers each watch as its server's `answer` says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        nothing: dict[str, Any] = {"metadata": {"resourceVersion": "5"}, "items": []}
        code, content = self.server.answer if "watch=true" in self.path else (200, nothing)  # type: ignore[attr-defined]
        body = json.dumps(content).encode() + b"\n"
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) + (content is EXPIRED[1])))  # the stream goes on
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in http.server
        """Log nothing."""


def client_of(server: http.server.HTTPServer) -> Client:
    """The client of an API server."""
    named = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "u", "namespace": "n"}}
    user = {"name": "u", "user": {"token": "t"}}
    configuration = {"current-context": "a", "clusters": [named], "contexts": [context], "users": [user]}
    return Client(KubeConfig.from_dict(configuration), timeout=httpx2.Timeout(5))


@pytest.fixture(params=[INITIALIZING, EXPIRED], ids=["initializing", "expired"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.answer = request.param  # type: ignore[attr-defined]
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with client_of(server) as client:
            yield client
        server.shutdown()


class Enough(threading.Event):
    """Stops the watch after more attempts than the client has connections; the pauses take no time."""

    attempts = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.attempts += 1
        return self.attempts > POOL + 20


def test_refused_watches_do_not_use_up_the_connections(client: Client) -> None:
    connection = Connection(client, None, Enough())  # type: ignore[arg-type]
    watches._watch_forever(watches._pods, a_run(), connection, queue.SimpleQueue())
    assert list(client.list(Pod)) == []
