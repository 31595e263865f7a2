"""The innermost cause in an exception of Keras or AutoGraph, which put it below what they were calling."""

import os
import re
import traceback
from collections.abc import Collection

_COLOUR = re.compile(r"\x1b\[\d*m")
_CALLING = re.compile(
    r"Exception encountered when calling (?:layer ['\"]?)?(?P<layer>[\w./-]+?)(?:\.call\(\)|['\"]| |$)"
)
_FRAME = re.compile(r'^File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_ERROR = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt)): ?(?P<text>.*)$")
_DETAILS = "Arguments received by "
"""Below this line Keras lists the arguments of a layer."""


def reason(error: BaseException, file: str) -> str:
    """A sentence without a full stop: the innermost exception, the layer that was called, and the line of the file.

    Args:
        error: The exception.
        file: The path of the user's model, whose innermost frame is named.
    """
    files = {os.path.abspath(file), os.path.realpath(file)}  # Python may know it by either, as in a ConfigMap
    kind, text, layer, line = type(error).__name__, "", "", _line_of(error, files)
    lines = iter([each.strip() for each in _COLOUR.sub("", str(error)).splitlines() if each.strip()])
    for each in lines:
        if frame := _FRAME.match(each):
            line = int(frame["line"]) if frame["file"] in files else line
            next(lines, None)  # the source of this frame
            continue
        if each.startswith(_DETAILS):
            break
        if found := _ERROR.match(each):
            kind, each = found["kind"], found["text"]
        if calling := _CALLING.search(each):
            layer, text = calling["layer"], ""
        elif each.rstrip(":") != "in user code" and not text:
            text = each
    where = [f"in {layer}" if layer else "", f"line {line}" if line else ""]
    place = ", ".join(filter(None, where))
    return f"{kind}: {text}".rstrip(".: ") + (f" ({place})" if place else "")


def _line_of(error: BaseException, files: Collection[str]) -> int:
    """The line of the innermost frame of a file with these paths in an exception's traceback; 0 if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return (frames[-1].lineno or 0) if frames else 0
