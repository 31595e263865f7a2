"""A lock that many requests share, and that a change of the model has for itself."""

import contextlib
import threading
from collections.abc import Iterator


class SharedLock:
    """Requests that begin while a change waits come after it, so that it waits only for those in progress."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._sharing = self._waiting = 0
        self._is_changing = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Within it, nothing changes."""
        with self._condition:
            self._condition.wait_for(lambda: not self._waiting and not self._is_changing)
            self._sharing += 1
        try:
            yield
        finally:
            with self._condition:
                self._sharing -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within it, nobody shares it."""
        with self._condition:
            self._waiting += 1
            self._condition.wait_for(lambda: not self._sharing and not self._is_changing)
            self._waiting -= 1
            self._is_changing = True
        try:
            yield
        finally:
            with self._condition:
                self._is_changing = False
                self._condition.notify_all()
