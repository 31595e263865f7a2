"""Fuzz tests: the number of their examples, and what holds for any input.

A program accepts an input, or refuses it in one sentence: it does not crash, hang or take unbounded memory.
`make test` takes the same few examples each time; `make fuzz` takes others, and more of them.
"""

import contextlib
import io
import os
import resource
import signal
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

import hypothesis
import pytest
from hypothesis import strategies as st

from trainer import cli
from trainer.errors import ConfigurationError
from trainer.text import abridge, one_line

FACTOR = int(os.environ.get("FUZZ_FACTOR", "1"))
"""`make fuzz` sets it: this many times the examples of `make test`, with a random seed."""
SECONDS = 20
MEMORY = 2**30
SENTENCE = 1020
"""The most characters of a refusal."""


def examples(number: int) -> hypothesis.settings:
    """The settings of a fuzz test with this number of examples."""
    return hypothesis.settings(
        max_examples=number * FACTOR,
        derandomize=FACTOR == 1,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@contextlib.contextmanager
def limits(memory: int = MEMORY) -> Iterator[None]:
    """Raise TimeoutError after `SECONDS` of CPU time, and MemoryError if the block takes this much more memory."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {SECONDS} s")

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, expire)
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))
        signal.signal(signal.SIGPROF, handler)


@contextlib.contextmanager
def may_refuse(memory: int = MEMORY) -> Iterator[None]:
    """The block ends, or raises a ConfigurationError of one line."""
    try:
        with limits(memory):
            yield
    except ConfigurationError as error:
        assert_sentence(abridge(one_line(str(error)), 1000))


def assert_sentence(text: str) -> None:
    """A refusal is one line of printable text, and not too long to read."""
    assert len(text.splitlines()) == 1, repr(text)
    assert not {unicodedata.category(character) for character in text} & {"Cc", "Cs"}, repr(text)
    assert 10 < len(text) < SENTENCE, repr(text)


def run_trainer(*words: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a `trainer` command in this process; return its exit code and standard output.

    It must end with 0, or with 2 and one sentence.
    """
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with pytest.MonkeyPatch.context() as patch, limits():
        for name in os.environ:
            if name == "TF_CONFIG" or name.startswith("TRAINER_"):
                patch.delenv(name)
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdout", output)
        patch.setattr(sys, "stderr", errors)
        code = cli.main(words)
        output.flush()
        errors.flush()
    printed, said = (stream.buffer.getvalue().decode() for stream in (output, errors))
    assert "Traceback" not in said
    assert code in (0, 2)
    if code:
        assert not printed
        assert_sentence(said.splitlines()[-1])
        assert all(line.startswith("trainer: ") for line in said.splitlines())
    return code, printed


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 2**64, -1, 10**400, -(10**4000)])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "\0", "\ud800", "a\nb", "\x1b[31m", "é", "{{", "x" * 10_000, "9" * 5000, "1e999", "../..", "nan"]
    )
)
"""Values of every type, also those that programs often forget."""
structures = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
"""Values, lists and maps of them, as JSON and YAML have."""


@st.composite
def mutations(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """One of these contents with some parts cut, repeated, overwritten or inserted."""
    content = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 64)) | st.just(len(content)))
        inserted = draw(st.binary(max_size=8) | st.sampled_from([b"", b"\xff" * 8, b"\0" * 8, content[start:end] * 2]))
        content = content[:start] + inserted + content[end:]
    return content


def nest(levels: int, opening: str, closing: str) -> bytes:
    """A structure as deep as this."""
    return (opening * levels + closing * levels).encode()


def yaml_bomb(levels: int = 12) -> bytes:
    """A few hundred bytes of YAML that stand for ten to the power of `levels` values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines).encode()


def merge_bomb(levels: int = 12) -> bytes:
    """The same, by merge keys."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, levels)]
    return "\n".join(lines).encode()
