"""Reads of a Lance dataset while the store or the volume does not respond."""

import logging
from collections.abc import Callable

import pytest

from trainer.errors import ConfigurationError, StoreError
from trainer.storage import lance_dataset

BUSY = "LanceError(IO): Generic S3 error: Server returned non-2xx status code: 503: <Code>SlowDown</Code>"
STALE = "LanceError(IO): Unable to read /data/a.lance/data/1.lance: Stale file handle (os error 116)"
DAMAGED = "LanceError(IO): the file is truncated, rust/lance.rs:12"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_dataset, "PAUSE_SECONDS", 0.0)


def failing(text: str, times: int) -> Callable[[], str]:
    """A read that fails with this text so often, and then succeeds."""
    left = [text] * times

    def read() -> str:
        if left:
            raise OSError(left.pop())
        return "read"

    return read


@pytest.mark.parametrize("text", [BUSY, STALE])
def test_a_read_is_repeated_until_the_store_or_the_volume_responds(text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert lance_dataset.reading("data_dir=s3://a/b", failing(text, 5)) == "read"
    (line,) = caplog.messages
    assert line.startswith("data_dir=s3://a/b cannot be read: ")
    assert line.endswith("; trying again for at most 120 s")


@pytest.mark.parametrize("text", [BUSY, STALE])
def test_a_store_that_stays_away_ends_the_task_so_that_it_is_started_again(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lance_dataset, "RETRY_SECONDS", 0.0)
    with pytest.raises(StoreError, match=r"^data_dir=/data cannot be read: .*; start again when it responds"):
        lance_dataset.reading("data_dir=/data", failing(text, 1000))


def test_damaged_data_is_not_read_again() -> None:
    with pytest.raises(ConfigurationError, match=r"^data_dir=/data cannot be read: the file is truncated"):
        lance_dataset.reading("data_dir=/data", failing(DAMAGED, 1))
