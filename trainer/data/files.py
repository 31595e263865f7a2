"""Writing a file so that readers see it whole or not at all, whatever happens to this process."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at a path, in one step, by one with this content; several processes may do so at once.

    Raises:
        OSError: the folder cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would hide the file from the other users of a shared volume
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
