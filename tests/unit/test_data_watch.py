"""The arguments, the pauses and the state file of `trainer data watch`."""

import json
from pathlib import Path
from types import SimpleNamespace

import lance
import pyarrow as pa
import pytest

from tests.unit.data_command import DataCommand
from trainer.datasets import commands, watch
from trainer.errors import ConfigurationError


def test_the_words_after_the_dashes_are_the_command_as_they_are() -> None:
    command = ["kubectl", "exec", "--dry-run=client", "pod", "--", "ls", "--state", "a"]
    for options in ([], ["--state", "s.json"], ["--state=s.json", "--interval", "2"]):
        arguments = commands.read(["watch", *options, "t.lance", "--", *command])
        assert (arguments.uri, arguments.words) == ("t.lance", command)
        assert arguments.state == (Path("s.json") if options else None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], r"the following arguments are required: URI \(see trainer data watch --help\)"),
        (["t.lance"], "COMMAND: there is none; add it after --"),
        (["t.lance", "--"], "COMMAND: there is none; add it after --"),
        (["t.lance", "sh", "-c", "true"], "sh: -- must be before the command; write: trainer data watch URI -- sh"),
        (["t.lance", "--tags", "a", "--", "true"], "--tags: there is no such option"),
        (["t.lance", "--", "absent-program", "x"], "COMMAND=absent-program: there is no such program; install it"),
        (["t.lance", "--tag", "12", "--", "true"], "tag=12: letters, digits"),
        (["t.lance", "--interval", "0", "--", "true"], "--interval: '0', but seconds from 0.1 to 86400 were expected"),
        (["t.lance", "--interval", "nan", "--", "true"], "--interval: 'nan', but seconds"),
        (["t.lance", "--interval", "abc", "--", "true"], "--interval: 'abc', but seconds from 0.1"),
        (["t.lance", "--tag", "", "--", "true"], "tag=: letters, digits"),
        (["t.lance", "--", "./t.lance"], "COMMAND=./t.lance: there is no such program"),
        (["t.lance", "--state", "absent/s.json", "--", "true"], r"--state: absent/s\.json cannot be written"),
        (["t.lance", "--state", ".", "--", "true"], r"--state: \. cannot be read \(Is a directory\)"),
        (["bad://t.lance", "--", "true"], "bad://t.lance cannot be read: .*No object store provider found"),
        (["s3://user:secret@host/t.lance", "--", "true"], "URI: the URI has a user, a password or a port"),
    ],
)
def test_wrong_arguments_end_it(data: DataCommand, words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        data.text("watch", *words)


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [(0o644, "the file is not executable; run chmod"), (0o755, "the file is not a program; if it is a script, add")],
)
def test_a_script_that_cannot_be_executed_ends_it(data: DataCommand, tmp_path: Path, mode: int, sentence: str) -> None:
    uri, script = tmp_path / "t.lance", tmp_path / "train.sh"
    lance.write_dataset(pa.table({"x": [1]}), str(uri))
    script.write_text("echo hello\n")
    script.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"COMMAND={script}: {sentence}"):
        data.text("watch", uri, "--", script)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is not the state of a watch; name another file"),
        ("[1]", "is not the state of a watch"),
        ('{"version": 1}', "is not the state of a watch"),
        ("ÿ", "is not the state of a watch"),
        ({"tag": "best"}, "is the state of a watch of the tag best of t.lance; name another file"),
        ({"uri": "u.lance"}, "is the state of a watch of u.lance"),
    ],
)
def test_a_state_of_something_else_is_refused(
    data: DataCommand, tmp_path: Path, content: str | dict[str, str], sentence: str
) -> None:
    state = tmp_path / "state.json"
    whole = {"uri": "t.lance", "tag": None, "version": 1, "transaction": ""}
    state.write_bytes((content if isinstance(content, str) else json.dumps({**whole, **content})).encode("latin-1"))
    with pytest.raises(ConfigurationError, match=sentence):
        data.text("watch", "t.lance", "--state", state, "--", "true")


def test_a_command_that_fails_runs_after_growing_pauses_and_at_once_for_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "t.lance")
    clock = 0.0
    runs: list[tuple[int, float]] = []

    def write() -> None:
        lance.write_dataset(pa.table({"x": [1]}), uri, mode="append")

    def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        if clock == 1000:
            write()
        elif clock > 1500:
            raise SystemExit

    def fail(request: watch.Request, version: watch.Version) -> str:
        runs.append((version.version, clock))
        return "it failed"

    write()
    # Threads of other tests also sleep, so the clock is that of this module alone.
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock))
    monkeypatch.setattr(watch, "_run_command", fail)
    with pytest.raises(SystemExit):
        watch.run(watch.Request(uri, None, ["true"], 10.0, None))
    first = [(1, 0), (1, 10), (1, 30), (1, 70), (1, 150), (1, 310), (1, 610), (1, 910)]
    assert runs == [*first, *((2, 1000 + seconds) for _, seconds in first[:6])]
