"""What a run has learnt: statistics, curves, logs, and the pieces of a page."""

import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from sklearn import metrics

from trainer.errors import ConfigurationError
from trainer.results import charts, html, statistics
from trainer.results.classifier import log_loss
from trainer.run_directory import curves, task_logs
from trainer.run_directory.curves import Curve
from trainer.run_directory.run import open_run
from trainer.telemetry import pictures, report
from trainer.telemetry.summaries import SummaryWriter

counts = st.integers(0, 2000)


@given(counts, counts.filter(bool))
def test_intervals_are_those_of_wilson(right: int, wrong: int) -> None:
    expected = stats.binomtest(right, right + wrong).proportion_ci(method="wilson")
    assert statistics.wilson(right, right + wrong) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(counts, counts)
def test_mcnemar_is_the_exact_test(only_first: int, only_second: int) -> None:
    total = only_first + only_second
    expected = stats.binomtest(only_first, total).pvalue if total else 1.0
    assert statistics.mcnemar(only_first, only_second) == pytest.approx(expected, rel=1e-6, abs=1e-290)


def test_the_confusion_matrix_is_that_of_scikit_learn() -> None:
    labels, predicted = np.random.default_rng(0).integers(0, 5, (2, 300))
    expected = metrics.confusion_matrix(labels, predicted)
    assert (statistics.confusion(labels, predicted, 5) == expected).all()


SCORED = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=1, max_size=50)


@given(SCORED)
def test_the_area_under_the_curve_is_that_of_scikit_learn(scored: list[tuple[int, int]]) -> None:
    labels, scores = np.array(scored).T
    if len(set(labels)) == 1:
        assert statistics.auc(labels, scores) is None
    else:
        assert statistics.auc(labels, scores) == pytest.approx(metrics.roc_auc_score(labels, scores))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40))
def test_the_difference_of_areas_has_the_interval_of_delong(scored: list[tuple[int, int, int]]) -> None:
    """By its definition: the covariance of what each example of one class gives with all of the other."""
    labels, *both = np.array(scored).T
    found = statistics.auc_difference(labels, *both)
    if min(np.bincount(labels, minlength=2)) < 2:
        assert found is None
        return
    assert found
    above = [np.heaviside(each[labels == 1][:, None] - each[labels == 0], 0.5) for each in both]
    variance = sum(np.cov([each.mean(axis=axis) for each in above]) / above[0].shape[1 - axis] for axis in (0, 1))
    half = stats.norm.ppf(0.975) * np.sqrt(max(0.0, np.array([1, -1]) @ variance @ [1, -1]))
    value = above[0].mean() - above[1].mean()
    assert found == pytest.approx((value, value - half, value + half), abs=1e-7)


def test_the_difference_of_means_has_the_interval_of_a_paired_bootstrap() -> None:
    first, second = np.random.default_rng(1).gamma(2.0, size=(2, 400))
    found = statistics.mean_difference(first, second + 0.5 * first)
    expected = stats.bootstrap((first - second - 0.5 * first,), np.mean, method="percentile", rng=2).confidence_interval
    assert found.value == pytest.approx((0.5 * first - second).mean())
    assert found[1:] == pytest.approx((expected.low, expected.high), abs=0.1 * (expected.high - expected.low))
    several = statistics.mean_difference(np.tile(first, 100), np.tile(second + 0.5 * first, 100))
    assert several.high - several.low == pytest.approx((found.high - found.low) / 10, rel=0.1)


def test_the_log_loss_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    probabilities = random.dirichlet([0.2] * 3, size=200).astype(np.float32)
    labels = random.integers(0, 3, 200)
    expected = metrics.log_loss(labels, probabilities)
    assert log_loss(probabilities, labels).mean() == pytest.approx(expected, rel=1e-6)


@given(SCORED.filter(lambda scored: len({label for label, _ in scored}) == 2))
def test_the_curves_of_thresholds_are_those_of_scikit_learn(scored: list[tuple[int, int]]) -> None:
    labels, scores = np.array(scored).T
    false_positives, recall, precision = statistics.threshold_curves(labels, scores)
    rates, found, _ = metrics.roc_curve(labels, scores, drop_intermediate=False)
    assert np.allclose([0, *false_positives], rates)
    assert np.allclose([0, *recall], found)
    expected, _, _ = metrics.precision_recall_curve(labels, scores)
    assert np.allclose([*precision[::-1], 1], expected)


def write(folder: Path, *values: tuple[int, float]) -> None:
    writer = SummaryWriter(folder)
    for step, value in values:
        writer.write(step, {"loss": value})
    writer.close()
    time.sleep(1.1)  # the name of an event file has the second


@pytest.mark.slow
def test_a_restored_checkpoint_takes_back_the_points_after_it(tmp_path: Path) -> None:
    write(tmp_path, (100, 3.0), (200, 2.0), (300, 9.0))
    write(tmp_path, (250, 1.5), (350, 1.0))
    curve = curves.read(tmp_path)["loss"]
    assert curve.steps.tolist() == [100, 200, 250, 350]
    assert curve.values.tolist() == [3.0, 2.0, 1.5, 1.0]


def test_a_file_that_is_being_written_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    write(tmp_path, (100, 3.0), (200, 2.0))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert curves.read(tmp_path)["loss"].steps.tolist() == [100]


def make_curve(values: np.ndarray) -> Curve:
    return Curve(np.arange(1, len(values) + 1), np.arange(len(values), dtype=float), values)


def test_a_curve_of_100000_points_stays_small_and_keeps_its_extremes() -> None:
    values = np.random.default_rng(0).random(100_000)
    values[77_777] = 50.0
    line = curves.shorten(make_curve(values), 400)
    assert len(line.mean) <= 400
    assert line.high.max() == 50.0
    assert line.low.min() == values.min()
    assert line.mean.mean() == pytest.approx(values.mean(), rel=0.01)
    svg = charts.line_chart("loss", {"train": make_curve(values)}, html.write_number)
    assert len(svg) < 30_000


def test_values_that_are_not_finite_are_not_drawn() -> None:
    values = np.array([1.0, np.nan, np.inf, 0.5])
    svg = charts.line_chart("loss", {"train": make_curve(values)}, html.write_number)
    assert "nan" not in svg
    assert "inf" not in svg
    assert charts.line_chart("loss", {"train": make_curve(values[1:3])}, html.write_number) == ""


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-3.0, -1.0], [1e-9, 1e9], [0.0, 1e-30]])
def test_each_curve_is_inside_of_its_chart(values: list[float]) -> None:
    svg = charts.line_chart("x", {"test": make_curve(np.array(values))}, html.write_number, may_be_logarithmic=True)
    points = svg.split('points="')[-1].partition('"')[0].split()
    for point in points:
        x, y = map(float, point.split(","))
        assert 0 <= x <= charts.WIDTH
        assert 0 <= y <= charts.HEIGHT


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_picture_is_a_png_of_its_pixels(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    found = np.asarray(Image.open(io.BytesIO(pictures.to_png(pixels)))).reshape(pixels.shape)
    assert (found == pixels).all()


def test_pictures_are_shrunk_and_standardised_images_use_all_tones() -> None:
    assert pictures.to_bytes(np.full((200, 100, 3), 0.5), 64).shape == (50, 25, 3)
    found = pictures.to_bytes(np.array([[[-2.0], [3.0]], [[0.5], [0.5]]]), 64)
    assert found[..., 0].tolist() == [[0, 255], [128, 128]]
    assert pictures.is_picture((28, 28, 1))
    assert not any(pictures.is_picture(shape) for shape in ((784,), (28, 28), (28, 28, 2), (None, 28, 1)))


def line(at: float, **content: object) -> str:
    return f"12:00:00 worker 0: a sentence{report.MARK}{json.dumps({**content, 'time': at})}\n"


def test_logs_tell_starts_lost_tasks_and_failures(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").write_text(
        line(1.0, started={"version": "1"})
        + line(2.0, progress={"step": 3})
        + line(3.0, lost={"reason": "lost a parameter server"})
        + line(4.0, started={"version": "1"})
        + "12:00:00 worker 0: restored a sentence that is not data\n"
        + line(5.0, restored="run/model.ckpt-3")
        + line(6.0, ended={"code": 4, "reason": "the run diverges"})
    )
    (tmp_path / "tensorboard.log").write_text(line(1.0, started={}))
    (found,) = task_logs.read(tmp_path)
    assert (found.task, found.starts) == ("worker 0", 2)
    assert [event.kind for event in found.events] == ["started", "lost", "started", "restored", "ended"]
    assert found.failure is not None
    assert found.failure.content["code"] == 4


def test_a_task_that_has_started_again_has_not_failed(tmp_path: Path) -> None:
    (tmp_path / "ps-0.log").write_text(line(1.0, ended={"code": 138, "reason": "x"}) + line(2.0, started={}))
    assert task_logs.read(tmp_path)[0].failure is None


@pytest.mark.parametrize("name", ["absent", "foreign"])
def test_a_directory_of_something_else_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "events.out.tfevents.1").write_bytes(b"")
    with (
        pytest.raises(ConfigurationError, match=f"DIR: .*{name} is not a (training )?directory"),
        open_run(str(tmp_path / name), "DIR"),
    ):
        pass


def test_texts_of_a_run_cannot_change_the_page() -> None:
    found = html.table(["a<b"], [["</td><script>"]], "<i>") + html.facts([("<b>", "<script>", "&")])
    assert "<script>" not in found
    assert "<i>" not in found
