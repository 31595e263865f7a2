"""Atomic file writes."""

import stat
import threading
from pathlib import Path

import pytest

from trainer.data.files import write_atomically


def test_the_content_replaces_earlier_content(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"a long first content")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_other_users_can_read_the_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_a_failure_leaves_no_temporary_file(tmp_path: Path) -> None:
    folder = tmp_path / "directory"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(folder, b"content")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "absent" / "file", b"")


def test_a_reader_sees_the_complete_content_of_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([letter]) * 100_000 for letter in b"ab"]
    write_atomically(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(30):
            write_atomically(path, content)

    writers = [threading.Thread(target=write, args=[content]) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]
