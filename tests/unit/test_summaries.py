"""TensorBoard summaries."""

from pathlib import Path

from trainer.telemetry.summaries import SummaryWriter
from trainer.tensorflow import tf1


def test_each_name_is_a_curve_by_global_step(tmp_path: Path) -> None:
    writer = SummaryWriter(tmp_path / "train")
    writer.write(10, {"loss": 0.5, "accuracy": 0.75})
    writer.write(20, {"loss": 0.25})
    writer.close()
    (file,) = (tmp_path / "train").iterdir()
    points = {
        (value.tag, event.step): value.simple_value
        for event in tf1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert points == {("loss", 10): 0.5, ("accuracy", 10): 0.75, ("loss", 20): 0.25}


def test_a_metric_may_have_any_name(tmp_path: Path) -> None:
    writer = SummaryWriter(tmp_path / "train")
    writer.write(10, {"step": 0.5, "self": 0.25})
    writer.close()
