"""A real S3 server of this machine: versitygw, on a folder. Its objects are the files there."""

import contextlib
import math
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from hack.cluster import build
from hack.ports import free_ports

BUCKET = "runs"
SECRET = "not-to-be-printed"  # noqa: S105 - of a server that ends with the test


class ObjectStore:
    """The server, which `start` and `stop` may repeat."""

    def __init__(self, folder: Path) -> None:
        build.ensure_programs(["versitygw"])
        built = build.binaries() / "versitygw"
        self._program = str(built) if built.exists() else shutil.which("versitygw") or "versitygw"
        self.folder = folder / "store" / BUCKET
        self._metadata = folder / "metadata"
        for each in (self.folder, self._metadata):
            each.mkdir(parents=True)
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        """What a client needs."""

    def start(self, *options: str, has_conditional_writes: bool = True) -> None:
        """Start the server with more options, and wait until it accepts connections.

        Without metadata it knows no ETag, and ignores the header If-None-Match.
        """
        address = f"127.0.0.1:{self._port}"
        environment = {"ROOT_ACCESS_KEY": "tests", "ROOT_SECRET_KEY": SECRET}
        metadata = [f"--sidecar={self._metadata}"] if has_conditional_writes else ["--nometa"]
        command = [self._program, "--quiet", "--port", address, *options, "posix", *metadata, str(self.folder.parent)]
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Kill the server; its objects stay."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def uri(self, name: str) -> str:
        """The URI of a folder in the bucket."""
        return f"s3://{BUCKET}/{name}"

    @contextlib.contextmanager
    def slowed(self, upload: float = math.inf, download: float = math.inf) -> Iterator[dict[str, str]]:
        """Give the environment of a client whose connections have these rates, in bytes per second each."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._accept, args=(listener, upload, download), daemon=True).start()
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield {**self.environment, "AWS_ENDPOINT_URL": address}

    def _accept(self, listener: socket.socket, upload: float, download: float) -> None:
        with contextlib.suppress(OSError):  # it is closed at the end
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                for source, target, rate in ((client, server, upload), (server, client, download)):
                    threading.Thread(target=_forward, args=(source, target, rate), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, rate: float) -> None:
    """Copy what arrives until one side closes the connection."""
    with source, target:
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                time.sleep(len(data) / rate)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
