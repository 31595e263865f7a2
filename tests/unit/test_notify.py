"""What is posted when a run has ended."""

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from trainer.supervisor import notify


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers with the codes in turn, and keeps what it gets."""

    codes: list[int]
    got: list[object]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append(json.loads(body))
        self.send_response(self.codes.pop(0))
        self.send_header("Location", "/other")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a receiver with a token in it."""
    monkeypatch.setattr(notify, "PAUSES", (0.01, 0.01))
    Receiver.got = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hooks/T0KEN"
        server.shutdown()


@pytest.mark.parametrize(("codes", "posts"), [([200], 1), ([503, 204], 2), ([500, 500, 200], 3)])
def test_it_is_tried_three_times(receiver: str, codes: list[int], posts: int) -> None:
    Receiver.codes = [*codes]
    assert notify.notify(receiver, {"state": "Succeeded"})
    assert Receiver.got == posts * [{"state": "Succeeded"}]


def test_a_redirect_is_a_failure(receiver: str, caplog: pytest.LogCaptureFixture) -> None:
    Receiver.codes = [301] * 3
    assert not notify.notify(receiver, {})
    assert caplog.messages == [
        "the outcome is not posted to the address of run.notifySecret: HTTP 301 Moved Permanently"
    ]


def test_a_failure_is_said_without_the_address(receiver: str, caplog: pytest.LogCaptureFixture) -> None:
    Receiver.codes = [404] * 3
    assert not notify.notify(receiver, {"state": "Failed"})
    assert caplog.messages == ["the outcome is not posted to the address of run.notifySecret: HTTP 404 Not Found"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("T0KEN", "it is not a URL of http or https"),
        ("http://127.0.0.1:1/T0KEN", "[Errno 111] Connection refused"),
        ("http://[T0KEN/", "it is not a URL of http or https"),
        ("ftp://127.0.0.1:1/T0KEN", "it is not a URL of http or https"),
    ],
)
def test_an_address_that_is_wrong_is_not_shown(
    url: str, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "PAUSES", (0.01, 0.01))
    assert not notify.notify(url, {})
    assert caplog.messages == [f"the outcome is not posted to the address of run.notifySecret: {reason}"]
