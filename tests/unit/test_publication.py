"""A run that publishes its model while it trains, and a server's part that follows it."""

import itertools
import json
import os
import re
import shutil
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.config import Settings
from trainer.errors import AbsentError
from trainer.export import deltas, saved_model
from trainer.export.deltas import DamagedError
from trainer.kernels import library
from trainer.serving.follower import Follower
from trainer.serving.predictor import Predictor
from trainer.serving.shared_lock import SharedLock
from trainer.training import publication

from .conftest import train_alone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
    pytest.mark.skipif(library.load() is None, reason="there is no compiler of C++"),
]

MODEL = textwrap.dedent("""
    import time
    from pathlib import Path

    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers
    from trainer.export import deltas
    from trainer.layers import DynamicEmbedding

    RUN = Path(__file__).parent / "run"
    BEFORE = {chain for _, chain, _ in deltas.exports(RUN / "export")}

    def has_exports():
        found = [chain for _, chain, _ in deltas.exports(RUN / "export") if chain not in BEFORE]
        return len(found) >= EXPORTS and not (EXPORTS > 1 and (RUN / "deltas/00000001.npz").exists())

    def batches(seed):
        random = np.random.default_rng(seed)
        for step in range(STEPS):
            time.sleep(PAUSE if step == 100 else 0 if step < 5 or has_exports() else 0.2)
            users, items = random.integers(0, 200, 20), random.integers(0, 50 + step, 20)
            yield {"user": users, "item": np.char.add("item ", items.astype(str))}, (users + items) % 2 * 1.0

    def train_data(context):
        kinds = {"user": tf.TensorSpec([None], tf.int64), "item": tf.TensorSpec([None], tf.string)}
        return tf.data.Dataset.from_generator(lambda: batches(0), output_signature=(kinds, tf.TensorSpec([None])))

    def test_data(context):
        users, items = np.arange(100), np.char.add("item ", np.arange(100).astype(str))
        return {"user": users, "item": items}, np.zeros(100, np.float32)

    def model():
        user, item = keras.Input((), dtype="int64", name="user"), keras.Input((), dtype="string", name="item")
        x = layers.Concatenate()([layers.Embedding(200, 8)(user), DynamicEmbedding(1000, 8)(item)])
        network = keras.Model({"user": user, "item": item}, layers.Dense(1, activation="sigmoid")(x))
        network.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy")
        return network
""")


def start(folder: Path, steps: int = 200, pause: float = 0, exports: int = 1, **settings: Any) -> Path:
    """Train and publish, each step or as often as a delta can be written; return the training directory.

    Before batch 100 the data pauses for so many seconds. It is slow until this session has so many exports, and of
    several the first delta is removed, so that a busy machine has time for them.
    """
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(
        MODEL.replace("STEPS", "700").replace("PAUSE", str(pause)).replace("EXPORTS", str(exports))
    )
    run = Settings(
        model=str(folder / "mine.py"),
        train_dir=str(folder / "run"),
        train_steps=steps,
        batch_size=20,
        table_rows=100,
        steps_per_execution=1,
        publish_seconds=0.01,
        export="last",
    )
    train_alone(replace(run, **settings))
    return folder / "run"


INPUTS = {"user": np.arange(100), "item": np.array([f"item {number}" for number in range(100, 0, -1)], object)}


def final(run: Path) -> Any:
    """What the last export predicts."""
    export = run / "export" / Path(json.loads((run / "result.json").read_text())["export"]).name
    model = saved_model.load(export, "the model")
    with model.session as session:
        (output,) = model.outputs.values()
        return session.run(output, {model.inputs[name]: each for name, each in INPUTS.items()})


def predict(follower: Follower) -> Any:
    (output,) = follower.predict(INPUTS)[0].values()
    return output


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publication, "MOST_DELTAS", 10**6)
        patch.setattr(publication, "SHARE", 10**6)
        return start(tmp_path_factory.mktemp("published"))


@pytest.fixture
def run(published: Path, tmp_path: Path) -> Path:
    """A copy of a run with one export and some deltas."""
    shutil.copytree(published, tmp_path / "run")
    return tmp_path / "run"


Sentences = list[str]


def test_a_follower_ends_with_the_model_of_the_last_step(run: Path) -> None:
    said: Sentences = []
    follower = Follower(run, said.append)
    first = predict(follower)
    assert follower.version.number == 0
    follower.catch_up()
    assert follower.version.number == deltas.numbers(run / "deltas")[-1] > 5
    assert follower.step == 200
    assert np.allclose(predict(follower), final(run), atol=1e-6)
    assert np.abs(predict(follower) - first).max() > 0.01
    assert said == []


def test_each_delta_is_applied_as_a_whole(run: Path) -> None:
    """Requests beside it see the model of one number alone."""
    numbers = deltas.numbers(run / "deltas")
    shutil.copytree(run, later := run.with_name("later"))
    for number in numbers:
        deltas.path(later / "deltas", number).unlink()
    follower, found = Follower(later, print), {}
    for number in numbers:
        shutil.copy(deltas.path(run / "deltas", number), later / "deltas")
        follower.catch_up()
        assert follower.version.number == number
        found[number] = predict(follower)
    beside, is_over = Follower(run, print), threading.Event()
    wrong: list[int] = []

    def ask() -> None:
        while not is_over.is_set():
            outputs, version = beside.predict(INPUTS)
            (output,) = outputs.values()
            if version.number and not np.array_equal(output, found[version.number]):
                wrong.append(version.number)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    beside.catch_up()
    is_over.set()
    for each in threads:
        each.join()
    assert not wrong
    assert beside.version.number == numbers[-1]


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    for place in range(len(content) // 4, len(content) // 2):
        content[place] ^= 255
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda file: file.unlink(), "the delta 3 is gone: the model stays at {} until the next export"),
        (damage, "the delta 3 cannot be applied: .* is damaged .*: the model stays at {} until the next export"),
        (lambda file: file.write_bytes(b""), "the delta 3 cannot be applied: .* is damaged"),
    ],
    ids=["absent", "damaged", "empty"],
)
def test_a_gap_stops_the_chain_and_is_said_once(run: Path, harm: Callable[[Path], None], message: str) -> None:
    said: Sentences = []
    harm(deltas.path(run / "deltas", 3))
    follower = Follower(run, said.append)
    follower.catch_up()
    follower.catch_up()
    assert follower.version.number == 2
    (sentence,) = said

    assert re.search(message.format(re.escape(str(follower.version))), sentence)


def test_a_follower_goes_on_with_the_export_of_another_chain(run: Path, tmp_path: Path) -> None:
    said: Sentences = []
    follower = Follower(run, said.append)
    follower.catch_up()
    (tmp_path / "mine.py").write_text(MODEL.replace("STEPS", "400"))
    start(tmp_path, 300)
    follower.catch_up()
    follower.catch_up()
    assert follower.step == 300
    assert np.allclose(predict(follower), final(run), atol=1e-6)
    assert all("the run has begun another chain" in each for each in said)


def test_a_model_is_rolled_back_until_the_next_export(run: Path, tmp_path: Path) -> None:
    said: Sentences = []
    follower = Follower(run, said.append)
    first = predict(follower)
    follower.catch_up()
    follower.roll_back()
    assert np.array_equal(predict(follower), first)
    follower.catch_up()
    assert np.array_equal(predict(follower), first)
    assert "rolled back to the export" in said[0]
    start(tmp_path, 300)
    follower.catch_up()
    follower.catch_up()
    assert follower.step == 300


def test_a_model_that_is_rolled_back_stays_though_there_are_newer_exports(run: Path) -> None:
    export, _, number = deltas.exports(run / "export")[-1]
    follower = Follower(run, print)
    follower.catch_up()
    assert follower.step == 200
    newer = Path(shutil.copytree(export, export.with_name("999999")))
    os.utime(newer / "saved_model.pb", (time.time(), time.time()))
    assert [each for each, _, _ in deltas.exports(run / "export")][-2:] == [export, newer]
    follower.roll_back()
    for _ in range(3):
        follower.catch_up()
    assert follower.version == (export.name, number)


def test_numbers_go_on_though_all_deltas_are_gone(tmp_path: Path) -> None:
    run = start(tmp_path / "some", 100)
    last = deltas.numbers(run / "deltas")[-1]
    shutil.rmtree(run / "deltas")
    start(tmp_path / "some", 200)
    assert deltas.numbers(run / "deltas")[0] >= deltas.exports(run / "export")[0][2]
    assert deltas.numbers(run / "deltas")[-1] < last + 200
    follower = Follower(run, print)
    follower.catch_up()
    assert follower.step == 200


def test_a_delta_that_fails_halfway_is_not_served_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: Sentences = []
    follower = Follower(run, said.append)
    monkeypatch.setattr(follower._model.changes, "prepare", lambda _: lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        follower.catch_up()
    follower.catch_up()
    assert np.allclose(predict(follower), final(run), atol=1e-6)


def test_a_run_that_waits_for_examples_writes_no_deltas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "MOST_DELTAS", 10**6)
    run = start(tmp_path / "pausing", pause=1.5)
    found = [deltas.read(run / "deltas", number) for number in deltas.numbers(run / "deltas")]
    assert len(found) > 1
    # Rows may change before their step counts.
    assert all(later.step > earlier.step or later.tables for earlier, later in itertools.pairwise(found))
    follower = Follower(run, print)
    follower.catch_up()
    assert np.allclose(predict(follower), final(run), atol=1e-6)


def test_old_deltas_and_exports_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "MOST_DELTAS", 3)
    run = start(tmp_path / "many", 600, exports=publication.KEPT_EXPORTS)
    found = deltas.exports(run / "export")
    assert len(found) <= publication.KEPT_EXPORTS
    numbers = deltas.numbers(run / "deltas")
    assert numbers[0] > 1
    follower = Follower(run, print)
    follower.catch_up()
    assert np.allclose(predict(follower), final(run), atol=1e-6)


def test_a_follower_whose_export_is_gone_goes_on_with_a_newer_one(run: Path, tmp_path: Path) -> None:
    """It was away for long, and its deltas are gone too."""
    said: Sentences = []
    late, held = Follower(run, said.append), Follower(run, said.append)
    held.roll_back()
    for export, _, _ in deltas.exports(run / "export"):
        shutil.rmtree(export)
    for number in deltas.numbers(run / "deltas"):
        deltas.path(run / "deltas", number).unlink()
    start(tmp_path, 300)
    expected = final(run)
    for follower in (late, held):
        for _ in range(3):
            follower.catch_up()
        assert follower.step == 300
        assert np.allclose(predict(follower), expected, atol=1e-6)
    late.roll_back()
    assert late.step < 300


def test_a_run_without_deltas_cannot_be_followed(run: Path) -> None:
    for export, _, _ in deltas.exports(run / "export"):
        shutil.rmtree(export)
    with pytest.raises(AbsentError, match="no export that deltas follow; train with publish_seconds"):
        Follower(run, print)


def test_a_model_without_tables_is_published_too(tmp_path: Path) -> None:
    run = Settings(
        train_dir=str(tmp_path / "run"), train_steps=300, steps_per_execution=1, publish_seconds=0.01, export="last"
    )
    train_alone(run)
    follower = Follower(tmp_path / "run", print)
    follower.catch_up()
    assert follower.step == 300
    export = Path(json.loads((tmp_path / "run" / "result.json").read_text())["export"]).name
    images = np.random.default_rng(0).random((5, 28, 28, 1), np.float32)
    expected = Predictor(tmp_path / "run" / "export" / export).predict({"images": images})
    found, _ = follower.predict({"images": images})
    assert np.allclose(found["probabilities"], expected["probabilities"], atol=1e-6)


def test_a_delta_is_read_as_it_was_written(tmp_path: Path) -> None:
    arrays = {"dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}
    rows = deltas.RowChanges(np.ones((2, 4), np.float32), rows=np.array([3, 5]))
    ids = deltas.RowChanges(np.ones((1, 4), np.float32), ids=np.array([-(2**60)]))
    delta = deltas.Delta("chain", 7, 100, 1.5, arrays, {"table/embeddings": rows, "other": ids})
    assert deltas.write(tmp_path, delta) == deltas.path(tmp_path, 7).stat().st_size
    found = deltas.read(tmp_path, 7)
    assert (found.chain, found.number, found.step, found.seconds) == ("chain", 7, 100, 1.5)
    assert np.array_equal(found.arrays["dense/kernel"], arrays["dense/kernel"])
    of_table, of_other = found.tables["table/embeddings"], found.tables["other"]
    assert of_table.rows is not None
    assert of_table.rows.tolist() == [3, 5]
    assert of_table.ids is None
    assert of_other.ids is not None
    assert of_other.ids.tolist() == [-(2**60)]
    with pytest.raises(FileNotFoundError):
        deltas.read(tmp_path, 8)
    deltas.path(tmp_path, 8).write_bytes(b"PK")
    with pytest.raises(DamagedError):
        deltas.read(tmp_path, 8)


def test_a_change_waits_for_requests_in_progress_and_later_ones_wait_for_it() -> None:
    lock, order = SharedLock(), []
    entered, leave = threading.Event(), threading.Event()

    def request() -> None:
        with lock.shared():
            entered.set()
            leave.wait(60)
            order.append("request")

    def change() -> None:
        with lock.alone():
            order.append("change")

    first, second = threading.Thread(target=request), threading.Thread(target=change)
    first.start()
    assert entered.wait(60)
    second.start()
    assert order == []
    leave.set()
    for each in (first, second):
        each.join(60)
    with lock.shared():
        order.append("later")
    assert order == ["request", "change", "later"]
