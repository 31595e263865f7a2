"""Reports: data in the log lines of tasks, which other programs read."""

import json
import logging
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.telemetry import progress, report
from trainer.telemetry.progress import Progress

PROGRESS = Progress(120, 200, 0.3456, {"accuracy": 0.91}, 48.5)
steps = st.integers(0, 10**12)
measures = st.floats(0)


def logged(sentence: str, **values: object) -> str:
    """The line that a task writes."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.setFormatter(report.Formatter("12:00:00 worker 0: %(message)s"))
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    logger = logging.Logger("a task's")
    logger.addHandler(handler)
    report.log(logger, sentence, **values)
    return lines[0]


@given(
    st.builds(Progress, steps, steps, measures, st.dictionaries(st.text(), measures), measures),
    st.text().filter(lambda text: text.strip()),
)
def test_a_report_is_read_whatever_the_sentence(written: Progress, sentence: str) -> None:
    assert progress.parse(logged(sentence, progress=asdict(written)) + "\n") == written


def test_people_see_the_sentence() -> None:
    line = logged("a sentence", progress=asdict(PROGRESS))
    assert line.startswith("12:00:00 worker 0: a sentence #trainer {")
    assert report.split(line)[0] == "12:00:00 worker 0: a sentence"


def test_a_report_holds_only_what_was_reported() -> None:
    line = logged("a sentence", restored="model.ckpt-7")
    assert report.read(line, "restored", str) == "model.ckpt-7"
    assert progress.parse(line) is None


@pytest.mark.parametrize("loss", ["nan", "inf"])
def test_a_loss_that_is_not_finite_is_read(loss: str) -> None:
    found = progress.parse(logged("a sentence", progress=asdict(Progress(1, 2, float(loss), {"accuracy": 0.1}, 5.0))))
    assert found is not None
    assert str(found.loss) == loss


@given(st.text())
def test_other_lines_have_no_report(line: str) -> None:
    assert report.split(line) == (line.rstrip(), {})
    assert progress.parse(line) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "3",
        "[" * 100_000,
        json.dumps({"progress": None}),
        json.dumps({"progress": {"step": 1}}),
        json.dumps({"progress": asdict(PROGRESS) | {"loss": "much"}}),
        json.dumps({"progress": asdict(PROGRESS) | {"step": 1.5}}),
        f'{{"progress": {{"step": {"1" * 5000}}}}}',
    ],
)
def test_a_malformed_report_is_ignored(text: str) -> None:
    assert progress.parse(f"12:00:00 worker 0: a sentence{report.MARK}{text}") is None
