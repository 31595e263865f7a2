"""`trainer models delta` on two exports of a run with a table."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer import cli
from trainer.config import Settings
from trainer.export import export_folder
from trainer.kernels import library
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode

from .conftest import train_alone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
]

ROWS, SEEN = 1000, 200
MODEL = f"""
    import keras
    import numpy as np

    def train_data(context):
        ids = np.random.default_rng(0).integers(0, {SEEN}, (400, 4))
        return ids, ids[:, 0] % 2

    test_data = train_data  # which the run surely learns, so that the export is that of the last step

    def model():
        layers = keras.layers
        network = keras.Sequential([layers.Embedding({ROWS}, 8), layers.Flatten(), layers.Dense(2)])
        network.compile(keras.optimizers.Adagrad(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return network
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with exports at steps 20 and 40."""
    folder = tmp_path_factory.mktemp("delta")
    file = folder / "mine.py"
    file.write_text("\n".join(line[4:] for line in MODEL.splitlines()))
    for steps in (20, 40):
        settings = Settings(
            model=str(file),
            train_dir=str(folder / "run"),
            train_steps=steps,
            batch_size=50,
            table_rows=100,
            export="last",
        )
        train_alone(settings)
    return folder / "run"


Delta = Callable[..., tuple[int, str]]


@pytest.fixture
def delta(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Delta:
    """Runs the command; returns its exit code, and its error or what it prints."""

    def start(old: Any = run / "export" / "20", new: Any = run, output: Path = tmp_path / "delta") -> tuple[int, str]:
        code = cli.main(["models", "delta", str(old), str(new), "--output", str(output)])
        said = capsys.readouterr()
        assert bool(said.err) == bool(code)
        return code, said.err or said.out

    return start


def apply(model: Any, folder: Path) -> None:
    """What docs/tables.md says."""
    variables = {each.name.removesuffix(":0"): each for each in model.variables}
    for each in json.loads((folder / "delta.json").read_text())["variables"]:
        values = np.load(folder / each["values"])
        if "rows" in each:
            variables[each["name"]].scatter_update(tf.IndexedSlices(values, np.load(folder / each["rows"])))
        else:
            variables[each["name"]].assign(values)


def predict(model: Any) -> Any:
    """The outputs of a loaded model for some ids."""
    ids = np.random.default_rng(1).integers(0, ROWS, (50, 4)).astype(np.int32)
    (outputs,) = model.signatures["serving_default"](tf.constant(ids)).values()
    return outputs.numpy()


def test_a_loaded_model_gets_the_values_of_the_newer_one(delta: Delta, run: Path, tmp_path: Path) -> None:
    code, said = delta()
    assert code == 0, said
    assert f"{SEEN} rows of tables and 2 whole arrays have changed" in said
    with eager_mode():
        model = tf.saved_model.load(str(run / "export" / "20"))
        wanted = predict(tf.saved_model.load(str(run / "export" / "40")))
        assert not np.allclose(predict(model), wanted)
        apply(model, tmp_path / "delta")
        np.testing.assert_array_equal(predict(model), wanted)


def test_a_delta_names_the_versions_by_their_digests(delta: Delta, run: Path, tmp_path: Path) -> None:
    """An old version of another run may have the same shapes."""
    assert delta()[0] == 0
    found = json.loads((tmp_path / "delta" / "delta.json").read_text())
    for name, step in (("old", "20"), ("new", "40")):
        assert found[name] == step
        assert found[f"{name}_digest"] == export_folder.digest(run / "export" / step)


def test_slices_find_the_same_rows(delta: Delta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert delta()[0] == 0
    monkeypatch.setattr("trainer.results.delta.SLICE_BYTES", 32 * 7)
    assert delta(output=tmp_path / "sliced")[0] == 0
    for file in (tmp_path / "delta").iterdir():
        assert (tmp_path / "sliced" / file.name).read_bytes() == file.read_bytes()


def test_equal_models_have_no_changes(delta: Delta, run: Path, tmp_path: Path) -> None:
    code, said = delta(new=run / "export" / "20")
    assert (code, "0 rows of tables and 0 whole arrays" in said) == (0, True)
    assert json.loads((tmp_path / "delta" / "delta.json").read_text())["variables"] == []


def test_bad_input_is_a_sentence_and_leaves_nothing(delta: Delta, run: Path, tmp_path: Path) -> None:
    assert "is not a model" in delta(old=tmp_path)[1]
    (tmp_path / "there").mkdir()
    assert "exists; name a folder that does not" in delta(output=tmp_path / "there")[1]
    (tmp_path / "file").touch()
    assert "cannot be written (Not a directory)" in delta(output=tmp_path / "file" / "delta")[1]
    shutil.copytree(run / "export" / "20", tmp_path / "20")
    for file in (tmp_path / "20" / "variables").glob("*.data-*"):
        file.write_bytes(file.read_bytes()[:100])
    code, said = delta(old=tmp_path / "20")
    assert (code, "OLD: the variables of" in said and "copy the model again" in said) == (2, True)
    other = Settings(train_dir=str(tmp_path / "other"), train_steps=2, batch_size=50)
    train_alone(other)
    assert "has other variables than OLD, such as" in delta(new=tmp_path / "other")[1]
    assert {each.name for each in tmp_path.iterdir()} == {"there", "file", "20", "other"}


GROWING = """
import keras
import numpy as np
import tensorflow as tf
from trainer.layers import DynamicEmbedding

def train_data(context):
    ids = np.arange(2000).reshape(1000, 2) // 4 * 7 + FIRST
    return tf.data.Dataset.from_tensor_slices((ids, ids[:, 0] % 2)).batch(50)

test_data = train_data

def model():
    table = DynamicEmbedding(1000, 8, expire_steps=11)
    network = keras.Sequential([keras.Input((2,), dtype="int64"), table, keras.layers.Flatten(), keras.layers.Dense(2)])
    network.compile(keras.optimizers.Adagrad(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network
"""


def rows_of(export: Path) -> dict[int, list[float]]:
    """The rows of the exported table that grows by their ids."""
    reader = tf.train.load_checkpoint(str(export / "variables" / "variables"))
    (name,) = [name.removesuffix("/ids") for name in reader.get_variable_to_shape_map() if name.endswith("/ids")]
    return dict(zip(reader.get_tensor(f"{name}/ids").tolist(), reader.get_tensor(name).tolist(), strict=True))


@pytest.mark.skipif(library.load() is None, reason="there is no compiler of C++")
@pytest.mark.parametrize("slice_bytes", [32 << 20, 640])
def test_the_delta_of_a_table_that_grows_is_by_ids(
    delta: Delta, tmp_path: Path, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.results.delta.SLICE_BYTES", slice_bytes)
    for steps, first in ((10, -900), (20, 0)):
        (tmp_path / "growing.py").write_text(GROWING.replace("FIRST", str(first)))
        settings = Settings(model=str(tmp_path / "growing.py"), train_dir=str(tmp_path / "run"), train_steps=steps)
        settings = replace(settings, batch_size=50, export="last")
        train_alone(settings)
    old, new = (rows_of(tmp_path / "run" / "export" / step) for step in ("10", "20"))
    assert old.keys() - new.keys()
    assert new.keys() - old.keys()
    code, said = delta(tmp_path / "run" / "export" / "10", tmp_path / "run" / "export" / "20")
    assert code == 0
    (entry,) = [
        each for each in json.loads((tmp_path / "delta" / "delta.json").read_text())["variables"] if "ids" in each
    ]
    ids, values, removed = (np.load(tmp_path / "delta" / entry[kind]) for kind in ("ids", "values", "removed"))
    assert len(ids) < len(new)
    kept = {key: row for key, row in old.items() if key not in set(removed.tolist())}
    assert kept | dict(zip(ids.tolist(), values.tolist(), strict=True)) == new
    assert f"{len(ids):,} rows of tables" in said
