"""Text of bounded length, for messages that quote input."""


def truncate(text: str, length: int) -> str:
    """Return the text, cut to at most `length` characters with "..." at the end."""
    return text if len(text) <= length else text[: length - 3] + "..."
