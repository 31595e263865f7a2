"""The commands that `trainer launch` and `trainer train` name at the end of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.run_directory.next_commands import next_commands
from trainer.run_directory.training_directory import TrainingDirectory

DIGITS = {
    "state": "done",
    "dataset": "digits",
    "dataset_digest": "d1",
    "test_accuracy": 0.9,
    "export": "mine/export/10",
}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the runs, with a `trainer` on PATH."""
    program = tmp_path / "bin" / "trainer"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.chdir(tmp_path)
    write("mine", "2026-11-03")
    return tmp_path


def write(name: str, updated: str, **changes: Any) -> None:
    """Write a run that is done, with its export."""
    export = Path(name, "export", "10")
    export.mkdir(parents=True)
    (export / "saved_model.pb").touch()
    Path(name, "result.json").write_text(json.dumps(DIGITS | {"updated": updated, "export": str(export)} | changes))


def commands(uri: str | None = None, **changes: Any) -> list[str]:
    return [command for command, _ in next_commands(TrainingDirectory(Path("mine"), uri), DIGITS | changes)]


REPORT = "trainer report mine"


def test_a_run_alone_has_a_page_and_predicts_images() -> None:
    assert commands() == [REPORT, "trainer models predict mine --data FOLDER --output predictions"]


def test_a_model_of_a_table_predicts_a_file() -> None:
    found = commands(dataset="lance", baseline={"what": "always no"}, classes=["no", "yes"])
    assert found == [REPORT, "trainer models predict mine --data FILE.csv --output predictions"]


def test_other_data_is_not_predicted() -> None:
    assert commands(dataset="train_data", test_accuracy=0.9) == [REPORT]
    assert commands(dataset="npz") == [REPORT]
    assert commands(dataset="lance") == [REPORT]


def test_it_compares_with_the_last_run_on_the_same_data() -> None:
    write("first", "2026-11-01")
    write("second run", "2026-11-02")
    write("other", "2026-11-03", dataset_digest="d2")
    write("values", "2026-11-03", test_accuracy=0.9)
    result = json.loads(Path("values", "result.json").read_text())
    del result["test_accuracy"]
    Path("values", "result.json").write_text(json.dumps(result))
    write("without export", "2026-11-03")
    Path("without export", "export", "10", "saved_model.pb").unlink()
    Path("broken").mkdir()
    Path("broken", "result.json").write_text("{")
    Path("strange").mkdir()
    Path("strange", "result.json").write_text("[]")
    assert commands()[-1] == "trainer models compare 'second run' mine"


@pytest.mark.parametrize(("output", "is_compared"), [("probabilities", True), ("logit", True), (None, False)])
def test_a_model_says_whether_it_is_a_classifier(output: str | None, is_compared: bool) -> None:
    """An accuracy is measured of other models too, such as of each letter of a text."""
    write("first", "2026-11-01")
    data = Path("mine", "export", "10", "data.json")
    data.write_text(json.dumps({"dataset": "digits"} | ({"output": output} if output else {})))
    assert any("compare" in each for each in commands(best_metric="accuracy")) == is_compared


def test_a_run_without_a_saved_model_predicts_nothing() -> None:
    Path("mine", "export", "10", "saved_model.pb").unlink()
    assert commands() == [REPORT]


def test_runs_without_a_common_measure_are_not_compared() -> None:
    write("first", "2026-11-01", dataset_digest=None)
    assert not any("compare" in each for each in commands(dataset_digest=None))
    assert not any("compare" in each for each in commands("s3://bucket/mine"))
