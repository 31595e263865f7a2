"""A text file as a stream of UTF-8: decompressed, decoded, and with one delimiter between two cells.

It opens files, and decides nothing but their compression, which their first bytes tell.
"""

import codecs
import csv
import io
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from trainer.errors import ConfigurationError

Lines: TypeAlias = Literal["plain", "padded", "blanks", "quoted"]
"""How a line is written: as it is read, with blanks before quotes, with runs of blanks between its cells, or as a whole
within quotes."""
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
_CHUNK = 1 << 20
_QUOTED = rb'("(?:[^"]|"")*")'
_BLANKS = re.compile(_QUOTED + rb"|[ \t]+")
_PADDING = re.compile(_QUOTED + rb'|(?<=[,;|])[ \t]+(?=")')


def open_bytes(path: Path) -> Any:
    """The decompressed bytes of a file, a `pyarrow.NativeFile`.

    Raises:
        ConfigurationError: a zip file has several members.
        OSError: the file cannot be read.
    """
    found = _compression(path)
    if found == "zip":
        return pa.PythonFile(_open_member(path), mode="r")
    return pa.input_stream(str(path), compression=found)


def open_text(path: Path, encoding: str, lines: Lines, start: int) -> Any:
    """The text of a file in UTF-8 from byte `start` of it, a `pyarrow.NativeFile`."""
    stream = open_bytes(path)
    if codecs.lookup(encoding).name != "utf-8":
        stream = pa.transcoding_input_stream(stream, encoding, "utf-8")
    while start > 0 and (skipped := len(stream.read(start))):
        start -= skipped
    if lines == "plain":
        return stream
    return pa.PythonFile(io.BufferedReader(_Rewritten(stream, REWRITES[lines]), _CHUNK), mode="r")


def ends_with_quote(path: Path) -> bool:
    """Whether the last character of a text is a quotation mark; true if it would have to be decompressed."""
    if _compression(path):
        return True
    with path.open("rb") as file:
        file.seek(-min(path.stat().st_size, 100), 2)
        return file.read().rstrip(b"\r\n\t \0,;|").endswith(b'"')


def single_blanks(lines: bytes) -> bytes:
    """Lines with one blank for each run of blanks outside of quotes, and none at the ends of a line."""
    stripped = b"\n".join(line.strip() for line in lines.split(b"\n"))
    return _BLANKS.sub(lambda found: found[1] or b" ", stripped)


def without_padding(lines: bytes) -> bytes:
    """Lines without blanks before quotes."""
    return _PADDING.sub(lambda found: found[1] or b"", lines)


def unquoted(lines: bytes) -> bytes:
    """Lines without the quotes around each whole line."""
    rows = csv.reader(io.StringIO(lines.decode("utf-8"), newline=""))
    return "".join(f"{row[0]}\n" for row in rows if row).encode()


REWRITES: Mapping[Lines, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "padded": without_padding,
    "blanks": single_blanks,
    "quoted": unquoted,
}


def _compression(path: Path) -> str | None:
    """The compression of a file, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(4)
    return next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None)


def _open_member(path: Path) -> Any:
    try:
        archive = zipfile.ZipFile(path)
        members = [
            each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX")
        ]
        names = ", ".join(each.filename for each in members[:3])
        if "[Content_Types].xml" in names:
            raise ConfigurationError(f"{path}: it is a workbook, not a text; save the sheet as a CSV file.")
        if len(members) != 1:
            raise ConfigurationError(
                f"{path}: the archive has {len(members)} files ({names}), but one was expected; unpack it to a folder."
            )
        return archive.open(members[0])
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise OSError(str(error)) from None


class _Rewritten(io.RawIOBase):
    """The lines of a stream, rewritten."""

    def __init__(self, stream: Any, rewrite: Callable[[bytes], bytes]) -> None:
        self._stream, self._rewrite = stream, rewrite
        self._rest, self._ready = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._stream.read(_CHUNK)
            head, end, rest = (self._rest + chunk).rpartition(b"\n") if chunk else (self._rest, b"", b"")
            if not chunk and not head:
                return 0
            self._ready, self._rest = self._rewrite(head + end) if head + end else b"", rest
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)
