"""What a long soak says about growth."""

import random
from pathlib import Path

import pytest

from benchmarks.faults.resources import Held, growth, survivors, written


def held(task: str, process: int, *times: float) -> list[Held]:
    return [Held(time, task, process, 100.0, 10, 5) for time in times]


def test_growth_is_that_of_an_hour_whatever_single_samples_are() -> None:
    choice = random.Random(0)
    noisy = [(60.0 * minute, 300 + minute / 30 + choice.gauss(0, 0.2)) for minute in range(120)]
    assert growth(noisy) == pytest.approx(2.0, abs=0.1)
    assert growth([*noisy, (61.0, 5000.0), (7000.0, 0.0)]) == pytest.approx(2.0, abs=0.2)
    assert growth([(0.0, 1.0), (0.0, 1.0), (60.0, 1.0)]) == 0


def test_survivors_have_one_process_since_then() -> None:
    samples = [
        *held("ps-0", 1, 0, 60, 120),
        *held("ps-1", 2, 0, 60),
        *held("ps-1", 3, 120, 180),
        *held("worker-0", 4, 0),
        *held("worker-0", 5, 60, 120),
    ]
    assert {task: [each.time for each in found] for task, found in survivors(samples, 30).items()} == {
        "ps-0": [60, 120],
        "worker-0": [60, 120],
    }


def test_what_is_written_is_counted_by_folder(tmp_path: Path) -> None:
    (tmp_path / "logs" / "deep").mkdir(parents=True)
    for name, size in (("a", 1), ("b", 2), ("logs/c", 3), ("logs/deep/d", 4)):
        (tmp_path / name).write_bytes(bytes(size << 20))
    assert written(tmp_path) == {"checkpoints": 3.0, "logs": 7.0}
