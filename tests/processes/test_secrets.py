"""A secret in the environment or in a URI is in nothing that a run writes: logs, errors, settings, files."""

from pathlib import Path
from typing import Any

import pytest

from tests.processes.trainers import Trainer

SECRET = "not-to-be-printed"  # noqa: S105
ENVIRONMENT: dict[str, Any] = dict.fromkeys(
    (
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "MY_PASSWORD",
    ),
    SECRET,
)
FAILING = """
import keras


def model():
    raise RuntimeError("the model is wrong")
"""


def assert_absent(folder: Path, output: str) -> None:
    """Neither the output nor a file has the secret, not even in binary."""
    assert SECRET not in output
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path


def test_a_run_and_its_report_have_no_secret(trainer: Trainer) -> None:
    for words in (["train", "--train_steps=10", "--train_dir=run"], ["report", "run"]):
        code, output = trainer.run(*words, **ENVIRONMENT)
        assert code == 0, output
    assert (trainer.folder / "run" / "report.html").exists()
    assert_absent(trainer.folder / "run", output)


@pytest.mark.parametrize("words", [["--print_config"], ["--train_steps=x"], ["--model=model.py"], ["--dataset=npz"]])
def test_settings_and_errors_have_no_secret(trainer: Trainer, words: list[str]) -> None:
    (trainer.folder / "model.py").write_text(FAILING)
    code, output = trainer.run("train", "--train_steps=10", "--train_dir=run", *words, **ENVIRONMENT)
    assert (code == 0) == (words == ["--print_config"]), output
    assert output
    assert_absent(trainer.folder, output)


@pytest.mark.parametrize("setting", ["train_dir", "data_dir"])
@pytest.mark.parametrize("words", [["--print_config"], []])
def test_a_password_in_a_uri_is_refused_and_not_shown(trainer: Trainer, setting: str, words: list[str]) -> None:
    uri = f"s3://me:{SECRET}@bucket/run"
    environment: dict[str, Any] = {f"TRAINER_{setting.upper()}": uri}
    code, output = trainer.run("train", *words, **environment)
    assert code == 2, output
    assert output.startswith(f"trainer: {setting}: the URI has a user, a password or a port")
    assert SECRET not in output


def test_notes_on_a_tfjob_show_no_value(trainer: Trainer) -> None:
    manifest = Path(__file__).parents[2] / "examples" / "tfjob.yaml"
    environment = f"env: [{{name: TF_CONFIG, value: {SECRET}}}, {{name: A, value: {SECRET}}}]\n              "
    text = manifest.read_text().replace("resources:", f"{environment}resources:")
    text += f"---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s3}}\nstringData: {{key: {SECRET}}}\n"
    (trainer.folder / "job.yaml").write_text(text)
    code, output = trainer.run("convert-tfjob", "job.yaml")
    assert code == 0, output
    notes = output.partition("# The TFJob")[0]
    assert "Secret s3: its content is in the values" in notes
    assert "env[TF_CONFIG]: not carried over" in notes
    assert SECRET not in notes
