"""The state of callbacks in a checkpoint."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from trainer.training import callback_state
from trainer.training.callback_state import CallbackState


class Own(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback of a user."""

    def __init__(self, limit: int = 3) -> None:
        super().__init__()
        self.limit, self.seen, self.file = limit, {"losses": [0.5]}, object()


def state_of(callbacks: list[Any], begun: list[dict[str, Any]], ended: int = 4) -> CallbackState:
    kinds = [type(each).__name__ for each in callbacks]
    arrays = callback_state.arrays_of(callbacks)
    return CallbackState(70, ended, 0.5, False, kinds, callback_state.changed(callbacks, begun), arrays)


def test_a_state_has_what_has_changed_and_not_what_the_file_says() -> None:
    early, own = keras.callbacks.EarlyStopping(patience=2), Own()
    begun = callback_state.attributes([early, own])
    early.wait, early.best, early.best_weights = 1, np.float32(0.25), [np.arange(3.0)]
    own.seen["losses"] += [float("inf"), 0.125]
    found = CallbackState.unpack(state_of([early, own], begun).pack())
    assert found
    assert found.values == [{"wait": 1, "best": 0.25}, {"seen": {"losses": [0.5, float("inf"), 0.125]}}]
    restored = [keras.callbacks.EarlyStopping(patience=5), Own(limit=9)]
    callback_state.restore(restored, found)
    assert (restored[0].patience, restored[0].wait, restored[0].best) == (5, 1, 0.25)
    assert restored[0].best_weights[0].tolist() == [0, 1, 2]
    assert (restored[1].limit, restored[1].seen["losses"][-1]) == (9, 0.125)


def test_a_callback_in_the_place_of_another_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    early = keras.callbacks.EarlyStopping()
    begun = callback_state.attributes([early])
    early.wait = 3
    other = keras.callbacks.ReduceLROnPlateau()
    callback_state.restore([other], state_of([early], begun))
    assert other.wait == 0
    assert "the callback ReduceLROnPlateau begins anew: in its place there was a EarlyStopping" in caplog.text


def test_a_damaged_state_is_none(tmp_path: Path) -> None:
    packed = state_of([Own()], callback_state.attributes([Own()])).pack()
    assert CallbackState.unpack(packed[: len(packed) // 2]) is None
    (tmp_path / "callbacks.npz").write_bytes(b"PK")
    assert callback_state.read_state(tmp_path / "callbacks.npz") is None
    assert callback_state.read_state(tmp_path / "absent") is None


def test_a_log_goes_on_without_epochs_that_are_trained_again(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("epoch;loss\r\n0;3\r\n1;2\r\n2;1\r\n", newline="")
    logger = keras.callbacks.CSVLogger(str(file), separator=";")
    callback_state.append_logs([logger], state_of([logger], callback_state.attributes([logger]), ended=1))
    assert logger.append
    assert file.read_bytes() == b"epoch;loss\r\n0;3\r\n1;2\r\n"


def test_arrays_that_are_too_large_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    early = keras.callbacks.EarlyStopping()
    early.best_weights = [np.zeros(10)]
    monkeypatch.setattr(callback_state, "MOST_BYTES", 79)
    assert callback_state.arrays_of([early]) == {}
