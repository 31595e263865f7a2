"""The line of one of TensorFlow's errors that describes it."""

import re

from trainer.tensorflow import tf
from trainer.text import truncate

LIST_PREFIX = re.compile(rf"^(?:\s*\(\d+\) )?(?:{'|'.join(filter(str.isupper, dir(tf.errors)))}): ")
"""The prefix of an error in a list: its number and code, such as "  (0) UNKNOWN: " or "UNKNOWN: "."""


def brief(error: Exception) -> str:
    """Return the first line of an error that describes the error, not its location."""
    locations = ("Graph execution error", "Detected at node", "Node:", "From /job:", " ")
    # TensorFlow lists several errors below "2 root error(s) found." or between lines of equals signs.
    lines = [LIST_PREFIX.sub("", line) for line in str(error).splitlines()]
    text = [line for line in lines if any(map(str.isalpha, line)) and not line.endswith(" root error(s) found.")]
    found = (line for line in text if not line.startswith(locations))
    return truncate(next(found, (text or [type(error).__name__])[0]), 200)
