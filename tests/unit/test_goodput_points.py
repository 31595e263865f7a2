"""The points of the curve of goodput, and how they are rendered."""

import json
from dataclasses import asdict

import pytest

from benchmarks.faults import curve, faults
from benchmarks.faults.cluster import SUPERVISOR
from benchmarks.faults.points import INTERVALS, MODES_AND_TABLES, Outcome, Point, Struck, points
from trainer.telemetry.goodput import Seconds

PARTS = Seconds(starting=5.0, training=160.0, again=4.0, waiting=9.0, saving=2.0)
STRUCK = [Struck("kill -9", "ps-0", 3.0, 4.0, 100, 6.0), Struck("kill -9", "worker-1", 0.5, 2.0, 0, 0.1)]
OUTCOME = Outcome(Point("processes", "asynchronous", 15), PARTS, 10_000, STRUCK, machine={})


def test_each_point_has_a_name_of_its_own_and_hits_only_its_tasks() -> None:
    found = points()
    assert len({point.name for point in found}) == len(found) == 2 * len(INTERVALS) * len(MODES_AND_TABLES) + 2 * 3
    for point in found:
        assert len(point.kinds) >= 4
        assert all(set(targets) <= {*point.workload.tasks, SUPERVISOR} for _, targets in point.kinds)


def test_some_point_has_each_fault() -> None:
    declared = {each for each in vars(faults).values() if isinstance(each, faults.Fault)}
    assert {fault for point in points() for fault, _ in point.kinds} == declared


def test_an_outcome_is_read_as_it_was_written() -> None:
    assert Outcome.from_json(json.loads(json.dumps(asdict(OUTCOME)))) == OUTCOME


def test_a_point_says_what_the_rest_of_the_time_went_into() -> None:
    expected = "goodput 88.9%; waiting 5.0%, starting 2.8%, again 2.2%, saving 1.1%; 1.0% of the steps were taken again"
    assert curve.sentence(OUTCOME) == expected


def test_a_longer_interval_has_the_same_cost_a_fault_and_the_same_share_of_saving() -> None:
    assert curve.extrapolated(OUTCOME, 180 / 2) == pytest.approx(PARTS.goodput)
    assert curve.extrapolated(OUTCOME, 3600) == pytest.approx(1 - 2 / 180 - 9 / 3600)


def test_the_tables_have_each_curve_and_each_kind_of_fault() -> None:
    machine = {"cores": 2, "cpu": "a CPU", "tensorflow": "2", "python": "3"}
    other = Outcome(Point("processes", "tables", 60), PARTS, 10_000, STRUCK[:1], ["it hung"], machine)
    full = Struck("volume full for 30 s", "–", 1.0, None, 0, 2.0)
    rare = Outcome(Point("processes", "asynchronous", 60, is_rare=True), Seconds(again=9.0), 1, [full], machine=machine)
    text = curve.render([Outcome(OUTCOME.point, PARTS, 10_000, STRUCK, machine=machine), other, rare])
    assert "| processes | asynchronous | 88.9% | 83.9%* | 95.9%* | 98.1%* | 98.6%* | waiting 5.0%" in text
    assert "| processes | tables | – | 88.9% | 92.9%* | 97.4%* | 98.4%* |" in text
    assert "| processes | asynchronous | kill -9 | ps-0 | 1 | 3.0 s | 4.0 s | 100 | 6.0 (6.0–6.0) |" in text
    assert "| processes | asynchronous | volume full for 30 s | – | 1 | 1.0 s | – | 0 | 2.0 (2.0–2.0) |" in text
    assert "**Problem** at processes / tables / 60 s: it hung" in text
