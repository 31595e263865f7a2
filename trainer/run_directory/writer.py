"""Which chief writes a training directory: the last one that has claimed it. Earlier ones stop without writing.

Kubernetes replaces the pod of a lost node, whose chief may still run and write to the same volume. A chief that starts
again in its own pod, its own process or its own launch goes on with its claim: it does not take the directory back from
a newer one.
"""

import contextlib
import json
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer.errors import SupersededError

FILE = "writer.json"
"""The claim, in the training directory or on the object store."""
VARIABLE = "TASK_WRITER"
"""The environment variable in which a process that executes itself again finds its identity."""
FOLDER = "TASK_DIR"
"""The environment variable with the folder in which the next process of a task finds it."""


@dataclass(frozen=True)
class Writer:
    """The identity of a chief."""

    train_dir: str
    id: str
    is_restart: bool
    """Whether an earlier process of this task has claimed the directory with this identity."""

    def claim(self, found: bytes | None) -> bytes:
        """Return the content of the claim, given the present one.

        Raises:
            SupersededError: this chief has restarted, and another one has claimed the directory meanwhile.
        """
        if self.is_restart:
            self.check(found)
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        claim = {"id": self.id, "host": socket.gethostname(), "pid": os.getpid(), "since": since}
        return (json.dumps(claim) + "\n").encode()

    def check(self, found: bytes | None) -> None:
        """Check that a claim is that of this chief, or that there is none that can be read.

        Raises:
            SupersededError: another chief has claimed the directory.
        """
        other = _parse(found)
        if other and other["id"] != self.id:
            raise SupersededError(
                f"train_dir: {self.train_dir} belongs to another chief since {other.get('since')} (process "
                f"{other.get('pid')} on {other.get('host')}), so this one stops without writing: end one of them, or "
                "choose another train_dir."
            )


def make_writer(train_dir: str) -> Writer:
    """Return the identity of this chief: that of an earlier process of its task, or a new one."""
    kept = Path(os.environ[FOLDER]) / "writer" if os.environ.get(FOLDER) else None
    texts = [os.environ.get(VARIABLE, "").encode()]
    with contextlib.suppress(OSError):
        texts += [kept.read_bytes()] if kept else []
    claims = [found for found in map(_parse, texts) if found and found.get("train_dir") == train_dir]
    earlier = claims[0]["id"] if claims else None
    writer = Writer(train_dir, earlier or uuid.uuid4().hex, earlier is not None)
    os.environ[VARIABLE] = json.dumps({"id": writer.id, "train_dir": train_dir})
    if kept:
        with contextlib.suppress(OSError):  # then a restart claims the directory again
            kept.write_text(os.environ[VARIABLE])
    return writer


def _parse(text: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and "id" in found else None
