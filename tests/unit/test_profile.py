"""Profiles: TensorFlow records a few real executions, and the tests read the profiles."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.config import StepRange
from trainer.telemetry.profile import Profile
from trainer.tensorflow import tf, tf1

Make = Callable[[StepRange | None], Profile]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda steps: Profile(steps, tmp_path)


def profiled_ops(folder: Path) -> list[set[str]]:
    """The ops in each profile of a training directory, NAME:KERNEL, in order of time."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found = []
    for file in sorted(folder.glob("plugins/profile/*/*.xplane.pb")):
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
        metadata = [(plane.event_metadata, line) for plane in space.planes for line in plane.lines]
        found.append({names[event.metadata_id].name for names, line in metadata for event in line.events})
    return found


def live(profile: Profile, steps: list[int]) -> None:
    """Run executions that end at these global steps. Each has an op named after its last step."""
    graph = tf.Graph()
    with graph.as_default(), tf1.device("/device:CPU:0"):
        ops: dict[int, Any] = {
            step: tf.linalg.matmul(*[tf.random.uniform([50, 50])] * 2, name=f"step_{step}") for step in steps
        }
    with tf1.Session(graph=graph) as session:
        before = 0
        for step, op in ops.items():
            profile.before_execution(before, step - before)
            session.run(op)
            profile.after_execution(step)
            before = step


def steps_in(ops: set[str]) -> set[int]:
    return {int(name.partition(":")[0].removeprefix("step_")) for name in ops if name.startswith("step_")}


def test_the_executions_that_cover_the_range_are_profiled(make: Make, tmp_path: Path, log_lines: list[str]) -> None:
    live(make(StepRange(25, 45)), [10, 20, 30, 40, 50, 60])
    (ops,) = profiled_ops(tmp_path)
    assert steps_in(ops) == {30, 40, 50}
    assert log_lines[0] == "profiling from step 20"
    assert f"tensorboard --logdir {tmp_path}" in log_lines[1]


def test_a_profile_that_ends_early_is_written(make: Make, tmp_path: Path) -> None:
    profile = make(StepRange(1, 1000))
    live(profile, [10])
    profile.stop()
    profile.stop()  # nothing runs any more
    (ops,) = profiled_ops(tmp_path)
    assert steps_in(ops) == {10}


def test_without_a_range_nothing_is_written(make: Make, tmp_path: Path, log_lines: list[str]) -> None:
    live(make(None), [10, 20])
    assert (list(tmp_path.iterdir()), log_lines) == ([], [])


def test_a_run_past_the_range_logs_it_once(make: Make, tmp_path: Path, log_lines: list[str]) -> None:
    profile = make(StepRange(5, 10))
    profile.before_execution(10, 5)
    profile.before_execution(15, 5)
    assert list(tmp_path.iterdir()) == []
    assert log_lines == ["profile_steps: the run is already past 5-10; no profile is written"]


def test_training_continues_if_a_profile_cannot_be_written(tmp_path: Path, log_lines: list[str]) -> None:
    (tmp_path / "plugins").write_text("in the way")
    live(Profile(StepRange(5, 15), tmp_path), [10, 20, 30])
    assert log_lines[-1].startswith("no profile: ")


def test_training_continues_if_another_profile_is_recorded(make: Make, tmp_path: Path, log_lines: list[str]) -> None:
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        live(make(StepRange(5, 15)), [10, 20, 30])
    finally:
        tf.profiler.experimental.stop()
    assert log_lines == ["no profile: Another profiler is running."]
