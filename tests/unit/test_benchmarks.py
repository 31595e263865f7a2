"""The report and the plan of the benchmarks, on results made up here; `make benchmark` tests the measurement itself."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import learning, plan, programs, report, results
from benchmarks.plan import ACCURACY, BUSY, BUSY_MACHINE, LEARNING, LONG, QUIET_MACHINE, RATES, SECTIONS, SINGLE
from benchmarks.workload import Outcome, Run, Workload

MACHINE: dict[str, str | int] = {"cpu": "a kind of CPU", "cores": 2, "tensorflow": "2", "python": "3"}
ASYNCHRONOUS, SYNCHRONOUS = Workload("asynchronous"), Workload("synchronous", steps=1000)


def rates(workload: Workload, number: int, classic: float, trainer: float, limit: float) -> list[Run]:
    measured = {"classic": classic, "trainer": trainer, "no communication": limit}
    return [Run(RATES, name, number, workload, Outcome(rate)) for name, rate in measured.items()]


def test_the_report_says_whether_a_target_is_reached() -> None:
    runs = [*rates(ASYNCHRONOUS, 0, 100, 300, 1000), *rates(SYNCHRONOUS, 0, 100, 310, 1000)]
    text = report.render(MACHINE, runs)
    assert "**Target, asynchronous, 1 ps, 2 workers: 3.00 times the classic code in 1 rounds" in text
    assert "at least 2.8: reached.**" in text
    assert "at least 3.2: missed.**" in text
    assert "2 cores of a kind of CPU" in text


def test_ratios_are_of_the_same_round_and_workload() -> None:
    other = replace(ASYNCHRONOUS, ps=2)
    runs = [
        *rates(ASYNCHRONOUS, 0, 100, 300, 1000),
        *rates(ASYNCHRONOUS, 1, 200, 400, 1000)[1:],  # its classic run failed
        *rates(ASYNCHRONOUS, 2, 100, 500, 1000),
        *rates(other, 0, 100, 150, 1000),
    ]
    assert report.pairs(runs, ASYNCHRONOUS, "classic", "trainer") == [(100, 300), (100, 500)]
    assert report.pairs(runs, other, "classic", "trainer") == [(100, 150)]
    assert "4.00 (3.00–5.00) times the classic code in 2 rounds" in report.rates(runs)


def test_a_synchronous_step_counts_the_examples_of_every_worker() -> None:
    assert "| 60% |" in report.rates(rates(SYNCHRONOUS, 0, 100, 300, 1000))
    assert "| 30% |" in report.rates(rates(ASYNCHRONOUS, 0, 100, 300, 1000))


def test_the_time_to_learn_is_that_of_the_first_sample_with_the_target_accuracy() -> None:
    curve = [(0.0, 1, 0.2), (0.5, 90, 0.96), (0.6, 100, 0.98), (0.7, 110, 0.97)]
    runs = [
        Run(LEARNING, SINGLE, 0, ASYNCHRONOUS, Outcome(1000, accuracy=1.0)),
        Run(LEARNING, "trainer", 0, ASYNCHRONOUS, Outcome(1000, accuracy=0.99, curve=curve, first_step=7.0)),
    ]
    assert "| asynchronous | trainer | 1 | 99.00% | 100 | 0.60 | 7.6 |" in report.learning(runs)


def test_loss_of_accuracy_is_computed_seed_by_seed() -> None:
    runs = [
        Run(ACCURACY, name, seed, SYNCHRONOUS, Outcome(1000, accuracy=found))
        for name, accuracies in {SINGLE: (0.98, 0.99, 0.5), "classic": (0.5, 0.6), "trainer": (0.97, 0.99)}.items()
        for seed, found in enumerate(accuracies)  # the trainer's run of seed 2 failed
    ]
    text = report.accuracy(runs)
    assert "| synchronous | trainer | 2 | 98.00% ± 1.00 | -0.50 ± 0.50 |" in text
    assert "-0.50 ± 0.50 points compared with a single process on the same examples, mean of 2 seeds" in text
    assert "at most 0.5 less: reached.**" in text
    assert text.count("**Target") == 1, "only the trainer has one"
    worse = [replace(run, outcome=Outcome(1000, accuracy=0.9)) if run.program == "trainer" else run for run in runs]
    assert "missed" in report.accuracy(worse)


def test_long_runs_are_compared_with_their_best_accuracy() -> None:
    synchronous = replace(SYNCHRONOUS, steps=20_000)
    runs = [
        Run(LONG, SINGLE, 0, replace(ASYNCHRONOUS, steps=40_000), Outcome(1, accuracy=0.98)),
        Run(LONG, "trainer", 0, synchronous, Outcome(1, accuracy=0.9, best=0.99)),
        Run(LONG, "trainer", 1, synchronous, Outcome(1, accuracy=0.98, best=0.98)),
    ]
    text = report.render(MACHINE, runs)
    assert "|  | single process | 40,000 | 1 | 98.00% | – | – |" in text
    assert "| synchronous | trainer | 20,000 | 2 | 94.00% (90.00%–98.00%) | 98.50% | 9.00 |" in text


@pytest.mark.parametrize(
    ("busy", "verdict"),
    [((0.97, 0.99), "reached"), ((0.974, 0.978), "missed"), ((0.96, 1.0), "missed")],
)
def test_a_busy_machine_has_targets_for_the_mean_and_the_worst_run(busy: tuple[float, float], verdict: str) -> None:
    accuracies = {SINGLE: (0.98, 0.98), QUIET_MACHINE: (0.98, 0.98), BUSY_MACHINE: busy}
    runs = [
        Run(BUSY, name, seed, ASYNCHRONOUS, Outcome(1, accuracy=found))
        for name, each in accuracies.items()
        for seed, found in enumerate(each)
    ]
    quiet, loaded = [line for line in report.render(MACHINE, runs).splitlines() if line.startswith("**Target")]
    assert quiet.endswith("of 2 runs; +0.00 in the worst run; at most 0.3 and 1.5 less: reached.**")
    assert loaded.endswith(f"less: {verdict}.**")


def test_results_survive_a_round_trip_through_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    found = results.Results()
    outcome = Outcome(12.5, {"ps": 500.0}, 0.9, [(0.0, 1, 0.5)], best=0.95)
    for number in range(2):
        found.add(Run(RATES, "trainer", number, ASYNCHRONOUS, outcome))
    machine, runs = results.read(found.path)
    assert machine == found.machine
    assert json.dumps([run.to_json() for run in runs]) == json.dumps([run.to_json() for run in found.runs])


def test_results_of_earlier_versions_are_read() -> None:
    run = Run(RATES, "trainer", 1, ASYNCHRONOUS, Outcome(12.5))
    content = run.to_json()
    old = {"turn": content.pop("round"), "work": content.pop("workload"), **content}
    assert Run.from_json(old) == run


def test_the_report_replaces_the_text_between_its_comments(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    for _ in range(2):
        report.insert(document, "new\n")
        assert document.read_text() == f"before\n\n{report.BEGIN}\n\nnew\n\n{report.END}\n\nafter\n"


def test_the_plot_has_every_measured_workload(tmp_path: Path) -> None:
    runs = [*rates(ASYNCHRONOUS, 0, 100, 300, 1000), *rates(replace(ASYNCHRONOUS, workers=4), 0, 100, 200, 1000)]
    report.draw(runs, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert "workers 4" in text
    assert len(text) < 100_000


def test_compared_programs_run_in_interleaved_rounds() -> None:
    planned = list(plan.plan(replace(plan.SHORT, pairs=2), programs.CLASSIC, SECTIONS))
    assert [(number, name) for _, number, (name, *_) in planned[:6]] == [
        *((0, "classic"), (0, "trainer"), (0, "no communication")),
        *((1, "classic"), (1, "trainer"), (1, "no communication")),
    ]
    assert {section for section, *_ in planned} == set(SECTIONS)


def test_accuracy_of_flat_parameters_equals_accuracy_of_the_network() -> None:
    random = np.random.default_rng(0)
    images = random.random((20, learning.PIXELS), np.float32)
    first = random.normal(size=(learning.PIXELS, 3))
    second = random.normal(size=(3, learning.CLASSES))
    labels = (np.maximum(images @ first + 1, 0) @ second).argmax(axis=1)
    flat = np.concatenate([first.ravel(), np.ones(3), second.ravel(), np.zeros(learning.CLASSES)])
    assert learning.accuracy(flat, images, labels) == 1
    assert learning.accuracy(flat, images, (labels + 1) % 10) == 0


def test_the_ratio_of_a_large_model_is_compared_with_its_target() -> None:
    workload = replace(ASYNCHRONOUS, hidden_units=500)
    rates = {"classic": (100, 200), "trainer": (300, 400), plan.BFLOAT16: (450, 800)}
    runs = [
        Run(plan.LARGE, name, number, workload, Outcome(rate))
        for name, measured in rates.items()
        for number, rate in enumerate(measured)
    ]
    text = report.large(runs)
    assert "asynchronous, 500 hidden units: 4.25 (4.00–4.50) times the classic code in 2 rounds" in text
    assert "at least 4.0: reached" in text
    assert "| asynchronous | 500 | trainer | 2 | 350 (300–400) | 2.50 (2.00–3.00) |" in text


def test_a_keras_model_is_compared_with_each_form_of_the_strategy() -> None:
    measured = {"trainer": (240, 200), "ParameterServerStrategy, plain": (100, 100)}
    runs = [
        Run(plan.MODELS, name, number, ASYNCHRONOUS, Outcome(rate))
        for name, rates in measured.items()
        for number, rate in enumerate(rates)
    ]
    text = report.models(runs)
    assert "2.20 (2.00–2.40) times ParameterServerStrategy, plain in 2 rounds; at least 2.0: reached" in text
    assert "best" not in text, "it was not measured"
