"""A real MLflow server of this machine, with SQLite and files in a folder, and a connection to it that breaks."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hack.ports import free_ports

START_SECONDS = 240
"""How long the server may take to start: it creates the tables of its database."""


class MlflowApi:
    """The REST API of a server."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def get(self, call: str, **query: str) -> dict[str, Any]:
        """What a GET request of MLflow's REST API returns."""
        return self._json(urllib.request.Request(f"{self._api(call)}?{urllib.parse.urlencode(query)}"))

    def post(self, call: str, **content: Any) -> dict[str, Any]:
        """What a POST request of MLflow's REST API returns."""
        headers = {"Content-Type": "application/json"}
        return self._json(urllib.request.Request(self._api(call), json.dumps(content).encode(), headers))

    def runs(self) -> list[dict[str, Any]]:
        """All runs of the server."""
        found = self.post("experiments/search", max_results=100)["experiments"]
        ids = [each["experiment_id"] for each in found]
        return list(self.post("runs/search", experiment_ids=ids).get("runs", []))

    def versions(self, model: str) -> list[dict[str, Any]]:
        """The versions of a registered model, with their tags as a dict."""
        found = self.get("model-versions/search", filter=f"name = '{model}'").get("model_versions", [])
        return [{**each, "tags": pairs(each["tags"])} for each in found]

    def _api(self, call: str) -> str:
        return f"{self.uri}/api/2.0/mlflow/{call}"

    def _json(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None


class MlflowServer(MlflowApi):
    """A server of this machine, which `start` and `stop` may repeat."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(f"http://127.0.0.1:{self._port}")

    def start(self) -> None:
        """Start the server, and wait until it responds."""
        store, files = f"sqlite:///{self.folder}/mlflow.db", str(self.folder / "files")
        place = ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        command = [sys.executable, "-m", "mlflow", "server", *place, "--backend-store-uri", store]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--artifacts-destination", files],
                cwd=self.folder,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
            except OSError:
                output = (self.folder / "server.log").read_text()
                assert self._process.poll() is None, output
                assert time.monotonic() < deadline, output
                time.sleep(0.2)
            else:
                return

    def stop(self) -> None:
        """Kill the server and its processes; its database and files stay."""
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def breaking(self, word: bytes) -> Iterator[str]:
        """Give the address of the server over a network that breaks each connection in which a request has a word."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._accept, args=(listener, word), daemon=True).start()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"

    def _accept(self, listener: socket.socket, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it is closed at the end
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                for source, target, refused in ((client, server, word), (server, client, b"")):
                    threading.Thread(target=_forward, args=(source, target, refused), daemon=True).start()


def pairs(listed: list[dict[str, str]]) -> dict[str, str]:
    """Keys and values, as MLflow lists them."""
    return {each["key"]: each["value"] for each in listed}


def _forward(source: socket.socket, target: socket.socket, refused: bytes) -> None:
    """Copy what arrives until one side closes the connection, or it has the refused word."""
    with source, target:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if refused and refused in data:
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
