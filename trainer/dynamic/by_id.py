"""How layers look up rows while a model is traced. It imports no Keras, whose import is a third of a task's start."""

import contextlib
import contextvars
from collections.abc import Iterator

_by_id = contextvars.ContextVar("by_id", default=False)


@contextlib.contextmanager
def rows_by_id() -> Iterator[None]:
    """Within it, layers look up rows by their ids, for graphs in which this lookup is replaced."""
    token = _by_id.set(True)
    try:
        yield
    finally:
        _by_id.reset(token)


def is_active() -> bool:
    """Whether that is so now."""
    return _by_id.get()
