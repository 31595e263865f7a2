"""The repetition of calls to the Kubernetes API."""

import logging
import threading
from collections.abc import Callable

import httpx2
import pytest
from lightkube import ApiError

from trainer.supervisor.connection import Backoff, Connection, StoppedError


class Hasty(threading.Event):
    """An event that is not waited for, so that the pauses take no time; it records them."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._allowed = pauses

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0)
        return len(self.pauses) > self._allowed


def an_error(code: int) -> ApiError:
    request = httpx2.Request("GET", "http://api")
    response = httpx2.Response(code, json={"message": f"the answer {code}", "code": code}, request=request)
    return ApiError(request=request, response=response)


def a_call(*errors: Exception) -> Callable[[], str]:
    """A call that fails with these errors, and then succeeds."""
    left = iter(errors)

    def call() -> str:
        if error := next(left, None):
            raise error
        return "done"

    return call


def a_connection(stopping: threading.Event) -> Connection:
    return Connection(client=None, raw=None, stopping=stopping)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", [an_error(500), an_error(409), an_error(429), httpx2.ConnectError("refused")], ids=str
)
def test_a_call_is_repeated_while_the_server_is_unavailable(error: Exception) -> None:
    stopping = Hasty(9)
    assert a_connection(stopping).retry(a_call(error, error)) == "done"
    assert stopping.pauses == [1, 1]


def test_an_absent_object_ends_the_repetition() -> None:
    with pytest.raises(ApiError):
        a_connection(Hasty(9)).retry(a_call(an_error(404)))


@pytest.mark.parametrize("code", [400, 401, 403, 413, 422])
def test_a_refused_request_is_repeated_ever_more_slowly_and_logged(caplog: pytest.LogCaptureFixture, code: int) -> None:
    caplog.set_level(logging.INFO)
    stopping = Hasty(99)
    assert a_connection(stopping).retry(a_call(*[an_error(code)] * 9)) == "done"
    assert stopping.pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert caplog.messages == [f"the Kubernetes API refuses a request, which is repeated: the answer {code}"]


def test_a_loop_goes_on_after_a_refusal_which_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    connection = a_connection(Hasty(0))
    for error in (an_error(422), an_error(422), an_error(500), an_error(404)):
        assert not connection.attempt_in_pass(a_call(error))
        clock[0] += 5
    assert caplog.messages == ["the Kubernetes API refuses a request, which is repeated: the answer 422"]
    clock[0] += 60
    assert not connection.attempt_in_pass(a_call(an_error(422)))
    assert len(caplog.messages) == 2
    assert connection.attempt_in_pass(a_call())


def test_a_supervisor_that_must_stop_does_not_wait() -> None:
    with pytest.raises(StoppedError):
        a_connection(Hasty(1)).retry(a_call(*[an_error(500)] * 9))
    with pytest.raises(StoppedError):
        Backoff(a_connection(Hasty(0))).wait(an_error(403))
