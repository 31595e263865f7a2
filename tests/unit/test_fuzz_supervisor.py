"""Any run.json, notes and log line is read, or refused: the supervisor reads what tasks and users write."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import examples, limits, may_refuse, mutations, nest, structures
from trainer.supervisor import lifecycle, notes, pods, run
from trainer.supervisor.notes import CountedRestarts, Notes
from trainer.supervisor.reporter import progress_annotations
from trainer.telemetry import progress, report, result

pytestmark = pytest.mark.slow

RUN: dict[str, Any] = {
    "successPolicy": "Chief",
    "cleanPodPolicy": "All",
    "suspend": False,
    "attempt": 1,
    "fullname": "mnist",
    "chart": "distributed-tensorflow",
    "release": "mnist",
    "job": "mnist-run-0",
    "hash": "0",
    "definition": "0",
    "leader": "mnist-worker-0",
    "roles": {"worker": {"replicas": 2, "exits": "1,2:Ignore 0-127:End 128-255:Restart", "addresses": 3}},
    "tensorboard": None,
    "resultCommand": None,
    "metricsPort": 9100,
    "stages": {"before": [{"name": "prepare", "digest": "1", "job": "mnist-stage-prepare-1", "always": False}]},
    "failurePolicy": {"rules": [{"action": "Fail", "onExitCodes": {"operator": "In", "values": [1]}}]},
}
SEEN = CountedRestarts(seen={"uid": 1})
NOTES = Notes(hash="0", state="Running", started=1.0, scales={"worker": 2}, counted=SEEN, finished={"mnist-ps-0": 0})
NAMES = [field.name for field in dataclasses.fields(Notes)]
PROGRESS = {"step": 1, "train_steps": 2, "loss": 0.5, "metrics": {"accuracy": 0.5}, "steps_per_second": 1.0}
RESULT = {"global_step": 1, "test_accuracy": 0.5, "test_loss": 0.5, "best": {"global_step": 1, "test_accuracy": 0.6}}
REPORTS: dict[str, Any] = {
    "progress": PROGRESS,
    "result": RESULT,
    "parked": {"exitCode": 0},
    "restored": "x",
}

numbers = st.integers() | st.floats() | st.sampled_from([10**400, 0.0, 5e-324, 1e308, -1, True])


def changed(original: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The map with other values for some of its keys."""
    return st.dictionaries(st.sampled_from([*original, "other"]), structures | numbers, max_size=2).map(
        lambda changes: {**original, **changes}
    )


def texts(original: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """JSON that is nearly that of the map."""
    return (
        changed(original).map(lambda each: json.dumps(each).encode())
        | structures.map(lambda each: json.dumps(each).encode())
        | mutations([json.dumps(original).encode()])
        | st.sampled_from([nest(100_000, "[", "]"), nest(100_000, '{"a":', "}"), b"1" * 5000, b"\xff", b"\0", b""])
    )


@examples(200)
@given(
    texts(RUN)
    | changed(RUN["roles"]["worker"]).map(lambda role: json.dumps({**RUN, "roles": {"worker": role}}).encode())
)
def test_run_files(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "run.json"
    path.write_bytes(content)
    with may_refuse():
        found = run.read(path, "", "")
        for role in found.roles:
            assert isinstance(found.is_final(role, 1), bool)


@examples(200)
@given(texts(dataclasses.asdict(NOTES)).map(lambda each: each.decode("latin-1")))
def test_notes(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "run.json"
    path.write_text(json.dumps(RUN))
    with may_refuse():
        found = notes.parse({"notes.json": text})
        lifecycle.begin(run.read(path, "", ""), found, [], 1.0)
        assert notes.parse({"notes.json": notes.to_data(found, {})["notes.json"] or ""}) == found or "NaN" in text
        notes.to_ended(found, False, {})


@examples(300)
@given(
    st.sampled_from(list(REPORTS)).flatmap(
        lambda name: (changed(REPORTS[name]) if isinstance(REPORTS[name], dict) else structures).map(
            lambda value: json.dumps({name: value})
        )
    )
    | texts({**REPORTS}).map(lambda each: each.decode("latin-1"))
)
def test_reports_in_log_lines(text: str) -> None:
    line = f"12:00:00 worker 0: a sentence{report.MARK}{text}"
    with limits():
        if found := progress.parse(line):
            progress_annotations(found, now=1.8e9)
        if (ended := result.parse(line)) is not None:
            assert len(result.describe(ended) + result.early_end(ended)) < 1000
        pods.parse_parked(line)
        report.read(line, "restored", str)
