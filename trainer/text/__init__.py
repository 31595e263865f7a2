"""Text of one line and of bounded length, for messages that quote input."""

import difflib
import re
from collections.abc import Iterable, Sequence

CREDENTIALS = re.compile("[^:]+://[^/]*[:@]")
"""Matches the start of a URI with a user, a password or a port, which no message may show."""


def as_text(text: str | bytes) -> str:
    """Return a text, also of what TensorFlow has as bytes."""
    return text.decode() if isinstance(text, bytes) else text


def truncate(text: str, length: int) -> str:
    """Return the text, cut to at most `length` characters with "..." at the end."""
    return text if len(text) <= length else text[: length - 3] + "..."


def abridge(text: str, length: int) -> str:
    """Return the text, cut to at most `length` characters in the middle: a sentence keeps culprit and remedy."""
    return text if len(text) <= length else f"{text[: length // 2]}...{text[3 - (length - length // 2) :]}"


def enumerate_last(words: Sequence[str], one: str, several: str) -> str:
    """Return the noun and the last 20 words: "version 1", "versions 1, 2", "versions …, 30, 31" or "no version"."""
    shown = ", ".join([*(["…"] if len(words) > 20 else []), *words[-20:]])
    return f"{several if len(words) > 1 else one} {shown}" if words else f"no {one}"


def one_line(text: str) -> str:
    """Return the text with line breaks and control characters escaped, which a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the known word that is nearest, or nothing if none is near."""
    found = difflib.get_close_matches(word, [*known], n=1, cutoff=0.7)
    return f" (did you mean {found[0]}?)" if found else ""
