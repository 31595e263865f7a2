"""Errors of object stores as obstore reports them; whole stores are in tests/processes."""

import pytest

from trainer.storage.object_store import may_recover, reason

ANSWER = "<Error><Code>{0}</Code><Message>{1}</Message></Error>"


@pytest.mark.parametrize(
    ("status", "code", "message", "recovers"),
    [
        (503, "SlowDown", "Please reduce your request rate.", True),
        (507, "InsufficientStorage", "There is no room.", True),
        (429, "TooManyRequests", "Repeat it later.", True),
        (501, "NotImplemented", "A header implies functionality that is not implemented.", False),
        (403, "AccessDenied", "Access Denied.", False),
    ],
)
def test_a_store_that_fails_or_is_busy_may_recover_and_one_that_refuses_does_not(
    status: int, code: str, message: str, recovers: bool
) -> None:
    error = OSError(f"Error performing PUT http://store/a - status code: {status}: {ANSWER.format(code, message)}")
    assert may_recover(error) == recovers
    assert reason(error) == f"{code}: {message.rstrip('.')}"
