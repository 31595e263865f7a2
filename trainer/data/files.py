"""Atomic file writes: readers see the complete file or none, even if this process dies."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at a path atomically. Several processes may write the same path at the same time.

    Raises:
        OSError: the directory is not writable.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 makes the file unreadable for other users of a shared volume
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
