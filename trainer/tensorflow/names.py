"""Names of ops and scopes: TensorFlow takes fewer signs than Keras does for layers and outputs."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

from trainer.tensorflow.private import ops

_OTHER = re.compile(r"[^A-Za-z0-9_.\\/>-]")


def scope_name(name: str) -> str:
    """The name with an underscore in place of each sign that TensorFlow refuses."""
    safe = _OTHER.sub("_", name)
    return safe if not safe or safe[0].isalnum() or safe[0] == "." else f"x{safe}"


@contextlib.contextmanager
def any_scope() -> Iterator[None]:
    """Within it, a name scope may have any name."""
    original: Any = ops.Graph.name_scope
    with mock.patch.object(
        ops.Graph, "name_scope", lambda graph, name: original(graph, scope_name(name) if name else name)
    ):
        yield
