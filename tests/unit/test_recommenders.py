"""The recommenders' benchmark: its examples, and its report on results made up here."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.recommenders import __main__ as command
from benchmarks.recommenders import click_log, criteo, data, plan, records, report
from benchmarks.recommenders.auc import auc
from benchmarks.recommenders.click_log import CHUNK, Law
from benchmarks.recommenders.plan import LEARNING, MILLION, PROFILE, RATES, SECTIONS, Extent, Planned, Run
from benchmarks.recommenders.programs import PROGRAMS, Outcome
from benchmarks.recommenders.records import About, Form
from benchmarks.recommenders.work import Work
from benchmarks.results import Results, read_as
from trainer.tensorflow import tf, tf1

MACHINE: dict[str, str | int] = {"cpu": "a kind of CPU", "cores": 2, "tensorflow": "2", "python": "3"}
LAW = Law(Form(4, {"user": 300, "item": 200, "place": 100}), 1.2)


def test_the_auc_is_that_of_scikit_learn_also_with_equal_scores() -> None:
    random = np.random.default_rng(0)
    scores = random.integers(0, 50, 2000)
    labels = random.random(2000) < scores / 50
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores))
    with pytest.raises(ValueError, match="all 3 labels are 1"):
        auc(np.ones(3), np.arange(3))


def test_the_best_auc_of_a_log_is_that_of_its_probabilities(tmp_path: Path) -> None:
    click_log.make(tmp_path, LAW, CHUNK, CHUNK)
    about = records.read_about(tmp_path)
    rows, probabilities = LAW.chunk(LAW.hidden(), 1, 0)
    held_out = records.read(tmp_path / records.TEST, LAW.form)
    np.testing.assert_array_equal(held_out, rows)  # the day after the last one
    assert about.best == pytest.approx(roc_auc_score(LAW.form.targets(rows)[:, 0], probabilities))
    assert about.best is not None
    assert 0.75 < about.best < 0.95


def test_a_log_depends_on_its_seed_alone() -> None:
    chunk = LAW.chunk(LAW.hidden(), 3, 7)[0]
    np.testing.assert_array_equal(chunk, LAW.chunk(LAW.hidden(), 3, 7)[0])
    other = replace(LAW, seed=1)
    assert (chunk != other.chunk(other.hidden(), 3, 7)[0]).any()


def test_ids_are_as_frequent_as_zipf_has_them_and_come_and_go() -> None:
    law = Law(Form(0, {"user": 100_000, "item": 100_000, "place": 100_000}), 1.05)
    rare, frequent = (replace(law, exponent=exponent).chunk(law.hidden(), 0, 0)[0][:, 1] for exponent in (1.05, 1.2))
    assert np.bincount(frequent).max() > 1.3 * np.bincount(rare).max()
    assert len(np.unique(frequent)) < len(np.unique(rare))
    days = [set(law.chunk(law.hidden(), day, 0)[0][:, 1]) for day in (0, 0, click_log.LIFE)]
    assert days[0] == days[1]
    top = np.argsort(np.bincount(rare))[-5:]
    assert len(set(top) & days[2]) < len(top)


def test_a_history_has_items() -> None:
    law = replace(LAW, form=replace(LAW.form, history=5))
    inputs = law.form.inputs(law.chunk(law.hidden(), 0, 0)[0])
    assert inputs["history"].shape == (CHUNK, 5)
    assert inputs["history"].max() < 200


def test_workers_read_different_batches_and_together_all(tmp_path: Path) -> None:
    form = Form(1, {"user": 10_000})
    ids = np.arange(4 * records.BLOCK)
    rows = form.rows(ids % 2, ids[:, None], {"user": ids})
    records.write(tmp_path, About(form), [rows], [rows])
    found = []
    for part in range(2):
        reader = records.batches(records.read(tmp_path / records.TRAIN, form), records.BLOCK, part, 2)
        with tf.Graph().as_default(), tf1.Session() as session:
            dataset = records.dataset(tmp_path / records.TRAIN, form, ["user", "numbers"], records.BLOCK, part, 2)
            batch = tf1.data.make_one_shot_iterator(dataset).get_next()
            for _, rows in zip(range(2), reader, strict=False):
                inputs, targets = session.run(batch)
                np.testing.assert_array_equal(inputs["user"], form.inputs(rows)["user"])
                np.testing.assert_array_equal(inputs["numbers"], form.inputs(rows)["numbers"])
                np.testing.assert_array_equal(targets, form.targets(rows))
                found.append(inputs["user"])
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(batch)
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), ids)


def test_the_last_block_of_a_file_is_filled_up(tmp_path: Path) -> None:
    rows = LAW.chunk(LAW.hidden(), 0, 0)[0][:300]
    records.write(tmp_path, About(LAW.form), [rows], [rows])
    found = records.read(tmp_path / records.TRAIN, LAW.form)
    assert len(found) == 2 * records.BLOCK
    np.testing.assert_array_equal(found[300], rows[0])
    assert len(records.read(tmp_path / records.TEST, LAW.form)) == 300


def test_criteo_lines_may_have_empty_values() -> None:
    line = "\t".join(["1", *["7", "", "-2"], *["0"] * 10, *["68fd1e64", ""], *["0000000a"] * 24])
    (rows,) = criteo.parse([line + "\n"], "train.txt")
    inputs = criteo.FORM.inputs(rows)
    np.testing.assert_allclose(inputs["numbers"][0, :3], [np.log(8), 0, 0], rtol=1e-6)
    assert inputs["c1"][0] == 1 + 0x68FD1E64 % (criteo.SIZE - 1)
    assert inputs["c2"][0] == 0
    assert criteo.FORM.targets(rows)[0, 0] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t2", r"train.txt, line 2: 2 fields, but a line has 40, tab by tab; give the unchanged file\."),
        (
            "\t".join(["0", "x"] + ["0"] * 38),
            r"train.txt, line 2: invalid literal for int\(\) .*'x'; give the unchanged",
        ),
        ("\t".join(["0"] * 39 + ["wxyz"]), "train.txt, line 2: .*'wxyz'"),
    ],
    ids=["fields", "number", "id"],
)
def test_a_wrong_line_of_criteo_is_named(line: str, message: str) -> None:
    good = next(iter(criteo.lines(1)))
    with pytest.raises(criteo.CriteoError, match=message):
        list(criteo.parse([good, line], "train.txt"))


def test_our_lines_are_of_the_format_and_a_short_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / criteo.FILE
    file.write_text("".join(criteo.lines(1000)))
    assert any("\t\t" in line for line in criteo.lines(10))
    criteo.make(tmp_path / "rows", criteo.find(tmp_path), 600, 400)
    assert len(records.read(tmp_path / "rows" / records.TEST, criteo.FORM)) == 400
    with pytest.raises(criteo.CriteoError, match="1000 lines, but more than 1000 are necessary"):
        criteo.make(tmp_path / "rows", file, 1000, 1)


def test_a_folder_without_criteos_file_ends_the_command_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CRITEO_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        command.main(["--short"])
    assert ended.value.code == 2
    assert f"CRITEO_DIR: {tmp_path} has no train.txt; give the folder" in capsys.readouterr().err


def test_a_short_plan_has_every_program_and_model_and_section() -> None:
    planned = list(plan.plan(plan.SHORT, SECTIONS))
    assert {each.program for each in planned} == {*PROGRAMS}
    assert {"dlrm", "deepfm", "wide_and_deep", "two_towers", "din"} < {each.work.model for each in planned}
    assert {each.section for each in planned} == set(SECTIONS)


def test_a_whole_plan_compares_the_same_work() -> None:
    learnt = [each for each in plan.plan(Extent(), [LEARNING]) if each.work.data == data.CLICKS]
    assert len({(each.work.examples, each.work.every, each.work.learning_rate) for each in learnt}) == 1
    assert all(each.work.batch_size % records.BLOCK == 0 for each in plan.plan(Extent(), SECTIONS))


def rate(program: str, number: int, samples: float, work: Work) -> Run:
    return Run(Planned(RATES, number, program, work), Outcome(samples, samples / 2, 100.0, {"worker": 800.0}))


def learnt(program: str, work: Work, *figures: float) -> Run:
    curve = [(MILLION * number, 10.0 * number, figure) for number, figure in enumerate(figures, start=1)]
    return Run(Planned(LEARNING, 0, program, work), Outcome(1e5, 5e4, 0.0, curve=curve), best=0.9)


def test_the_report_renders_stored_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.results.FOLDER", tmp_path)
    work, alone = Work("dlrm", data.CLICKS), Work("dlrm", data.CLICKS, workers=1, ps=0)
    ops = [("ps", "ResourceGather", "table_rows", 1.0), ("worker", "MatMul", "dense/MatMul", 3.0)]
    collected = Results("recommenders-")
    for run in (
        *(rate("trainer", number, samples, work) for number, samples in enumerate((300_000, 400_000))),
        *(rate("classic", number, 200_000, work) for number in range(2)),
        rate("fit", 0, 100_000, alone),
        learnt("fit", alone, 0.7, 0.8),
        learnt("trainer", work, 0.6, 0.78, 0.82),
        Run(Planned(PROFILE, 0, "trainer", work), Outcome(2048 * 500, 0, 0, ops=ops)),
    ):
        collected.add(run)
    machine, runs = read_as(collected.path, Run.from_json)
    assert runs == collected.runs
    text = report.render({**machine, **MACHINE}, runs)
    assert "2 cores of a kind of CPU" in text
    assert "| dlrm | 2,048 | trainer, asynchronous | 1 | 2 | 2 | 350,000 (300,000–400,000) | 175,000 (150,000–" in text
    assert "| dlrm | 2,048 | classic, asynchronous | 1 | 2 | 2 | 200,000 (200,000–200,000) |" in text
    assert "| 1.75 (1.50–2.00) |" in text
    assert "is 0.9000" in text
    assert "seconds to 0.8000" in text
    assert "| `fit`, one process | 0.7000 | 0.8000 |  |  | 20.0 |" in text
    assert "| trainer, asynchronous | 0.6000 | 0.7800 |  |  | 25.0 |" in text
    assert "a batch takes 2.00 ms, in which all ops of all threads take 4.00 ms" in text
    assert "| worker | MatMul | 3.000 | 75% | `dense/MatMul` |" in text
    report.draw(runs, tmp_path / "chart.svg")
    assert "trainer, asynchronous" in (tmp_path / "chart.svg").read_text()


def test_an_auc_that_is_not_reached_has_no_seconds() -> None:
    assert report.seconds_to([(1, 1.0, 0.6)], 0.7) is None
    assert report.auc_at([(MILLION, 1.0, 0.6)], 2 * MILLION) is None


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="rows are fewer than 3 batches"):
        next(records.batches(np.zeros((512, 3), np.int32), 256, 0, 3))
