"""Model files that are scripts: their arguments, and calls of `fit` at their end."""

import sys
import textwrap
from pathlib import Path

import pytest

from trainer import config
from trainer.errors import ConfigurationError
from trainer.models import model_files, scripts

ARGUMENTS = """
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, default=16)
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    """


@pytest.fixture(autouse=True)
def _own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["trainer", "train", "--model", "mine.py"])


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(textwrap.dedent(text))
    return path


def read(*words: str) -> config.Settings:
    parser = config.Parser("trainer train", "")
    config.add_settings(parser, config.TASK_GROUPS)
    return config.load(parser.read(words), {})


def test_a_file_sees_its_own_arguments_alone(tmp_path: Path) -> None:
    path = write(tmp_path, ARGUMENTS)
    assert model_files.load(str(path)).args.units == 16
    settings = read("--model", str(path), "--train-steps", "4", "--", "--units", "32", "--", "two words")
    assert (settings.train_steps, settings.model_arguments) == (4, "--units 32 -- 'two words'")
    found = model_files.load(settings.model, settings.model_arguments)
    assert (found.args.units, found.args.words) == (32, ["two words"])
    assert sys.argv == [str(path), "--units", "32", "--", "two words"]


def test_arguments_are_settings_of_the_run(tmp_path: Path) -> None:
    settings = read("--train_dir", str(tmp_path), "--", "--units", "32")
    (tmp_path / "settings.yaml").write_text(config.to_yaml(settings))
    assert config.load_file(tmp_path / "settings.yaml").model_arguments == "--units 32"
    parser = config.Parser("trainer train", "")
    config.add_settings(parser, config.TASK_GROUPS)
    again = config.load(parser.read(["--train_dir", str(tmp_path)]), {}, continues=True)
    assert again.model_arguments == "--units 32"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "--unit x",
            "ends the program when it is imported with the arguments --unit x (SystemExit: 2 (line 7)); it gets those "
            "after --, as in trainer train --model {path} -- --units 32.",
        ),
        ("'", 'model_arguments="\'", but words as in a shell were expected: no closing quotation.'),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, arguments: str, sentence: str) -> None:
    path = write(tmp_path, ARGUMENTS)
    with pytest.raises(ConfigurationError) as refused:
        model_files.load(str(path), arguments)
    assert str(refused.value).removeprefix(f"model={path} ") == sentence.format(path=path)


NEVER = """
    import numpy as np
    from sklearn.preprocessing import StandardScaler

    def model():
        network.compile("sgd", "mse")
        network.fit(x, y, epochs=3)

    scaler = StandardScaler()
    scaler.fit(np.ones((3, 2)))

    if __name__ == "__main__":
        model().fit(x, y, epochs=3)
    """


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (NEVER, []),
        ("network.compile('sgd', 'mse')\nnetwork.fit(x, y)", ["line 2 calls network.fit()"]),
        ("history = build().fit(x, y, epochs=3)", ["line 1 calls build().fit()"]),
        ("if True:\n    with scope:\n        network.fit(x, verbose=0)", ["line 3 calls network.fit()"]),
        ("def model():\n    return 3\n\nnetwork = model()\nnetwork.fit(x, y)", ["line 5 calls network.fit()"]),
        ("def main():\n    network.fit(x, epochs=2)\n\nmain()", ["line 4 calls main(), which calls fit()"]),
        ("if __name__ == '__main__':\n    pass\nelse:\n    network.fit(x, epochs=2)", ["line 4 calls network.fit()"]),
        ("def broken(:", []),
    ],
)
def test_calls_of_fit_at_an_import_are_found(tmp_path: Path, text: str, found: list[str]) -> None:
    sentences = scripts.problems(write(tmp_path, text))
    assert [each.partition(", which trains")[0] for each in sentences] == found


def test_a_script_that_trains_says_so_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "class network:\n    fit = print\n\nnetwork.fit(epochs=3)")
    with pytest.raises(ConfigurationError):
        model_files.load(str(path))
    assert (
        f"model={path}: line 4 calls network.fit(), which trains by fit first, each time a task imports the file; put "
        'it under if __name__ == "__main__":'
    ) in caplog.text


def test_a_misspelt_function_that_nothing_calls_is_told(tmp_path: Path) -> None:
    text = "from data import test_data\n\ndef train_dat(context): return 1\n\ndef fit_argument(): return {}\n\n"
    text += "def test_datas(): return 2\n\ndef models(): return 3\n\nmodel = models\n"
    assert scripts.problems(write(tmp_path, text)) == [
        "line 3: nothing calls train_dat() (did you mean train_data?)",
        "line 5: nothing calls fit_argument() (did you mean fit_arguments?)",
    ]
