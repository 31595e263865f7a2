"""The state of Keras's callbacks, which a checkpoint has: what they count and what they remember.

That is each attribute which has changed since the run has begun, if it consists of numbers, texts, lists and
dictionaries, or of a list of arrays, such as EarlyStopping's best weights. What is given to a callback when it is made
comes from the model's file, also if that has changed meanwhile.
"""

import io
import json
import logging
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.examples import Array
from trainer.data.files import write_atomically

logger = logging.getLogger(__name__)

FACTS = "facts"
MOST_BYTES = 1 << 28
"""The arrays of callbacks in a checkpoint, at most: it has the weights of a larger model once, not twice."""
IGNORED = ("_model", "_params", "params", "validation_data")


@dataclass(frozen=True)
class CallbackState:
    """The state of the callbacks of a run."""

    step: int
    """The global step."""
    ended: int
    """The last epoch whose end they know; -1 if none."""
    rate: float
    """The learning rate that they have set, in relation to that of compile()."""
    is_over: bool
    """Whether they have ended the run."""
    kinds: Sequence[str]
    """The names of their classes."""
    values: Sequence[Mapping[str, Any]]
    """Of each: attributes by name."""
    arrays: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    """Attributes that are lists of arrays, by `INDEX/NAME`."""

    def pack(self) -> Array:
        """The state as uint8 [n]."""
        facts = {
            "step": self.step,
            "ended": self.ended,
            "rate": self.rate,
            "is_over": self.is_over,
            "kinds": self.kinds,
            "values": self.values,
            "arrays": {name: len(each) for name, each in self.arrays.items()},
        }
        arrays = {f"{name}/{number}": array for name, each in self.arrays.items() for number, array in enumerate(each)}
        stored = io.BytesIO()
        np.savez(stored, **{FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]
        return np.frombuffer(stored.getvalue(), np.uint8)

    @classmethod
    def unpack(cls, packed: Array) -> "CallbackState | None":
        """The state that was packed; None if this is none, as after a fault of the disk."""
        try:
            with np.load(io.BytesIO(packed.tobytes())) as stored:
                facts = json.loads(stored[FACTS].tobytes())
                arrays = {
                    name: [stored[f"{name}/{number}"] for number in range(count)]
                    for name, count in facts.pop("arrays").items()
                }
                return cls(**facts, arrays=arrays)
        except (LookupError, OSError, TypeError, ValueError, zipfile.BadZipFile):
            return None


def read_state(file: Path) -> CallbackState | None:
    """The state in a file; None if there is none that can be read."""
    try:
        return CallbackState.unpack(np.frombuffer(file.read_bytes(), np.uint8))
    except OSError:
        return None


def attributes(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """The attributes of callbacks that a checkpoint can have, each as JSON has it."""
    found = []
    for callback in callbacks:
        own = ((name, _plain(each)) for name, each in vars(callback).items() if name not in IGNORED)
        found.append({name: each for name, each in own if each is not _OTHER})
    return found


def changed(callbacks: Sequence[Any], begun: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The attributes that differ from those at the begin of the run."""
    pairs = zip(attributes(callbacks), begun, strict=True)
    return [
        {name: each for name, each in own.items() if name not in before or not _is_same(each, before[name])}
        for own, before in pairs
    ]


def arrays_of(callbacks: Sequence[Any]) -> dict[str, list[Array]]:
    """The attributes that are lists of arrays, by `INDEX/NAME`; none if they are too large."""
    found = {
        f"{index}/{name}": value
        for index, callback in enumerate(callbacks)
        for name, value in vars(callback).items()
        if isinstance(value, list) and value and all(isinstance(each, np.ndarray) for each in value)
    }
    return found if sum(array.nbytes for each in found.values() for array in each) <= MOST_BYTES else {}


def restore(callbacks: Sequence[Any], state: CallbackState) -> None:
    """Let callbacks continue from a state, after `on_train_begin`. One of another class than before begins anew."""
    kinds = [type(each).__name__ for each in callbacks]
    for index, (callback, kind, before) in enumerate(zip(callbacks, kinds, state.kinds, strict=False)):
        if kind != before:
            logger.info(f"the callback {kind} begins anew: in its place there was a {before}")
            continue
        for name, value in state.values[index].items():
            setattr(callback, name, value)
        for key, value in state.arrays.items():
            of, _, name = key.partition("/")
            if int(of) == index:
                setattr(callback, name, list(value))


def append_logs(callbacks: Sequence[Any], state: CallbackState) -> None:
    """Let each CSVLogger go on with its file, without epochs that are trained again. Call it before `on_train_begin`.

    Raises:
        OSError: a file cannot be read or written.
    """
    import keras

    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
            file = Path(callback.filename)
            if file.is_file():
                _keep_epochs(file, callback.sep, state.ended)


def _keep_epochs(file: Path, separator: str, last: int) -> None:
    with file.open(newline="", encoding="utf-8") as opened:
        lines = opened.readlines()
    epochs = [line.partition(separator)[0] for line in lines]
    kept = [line for line, epoch in zip(lines, epochs, strict=True) if not (epoch.isdecimal() and int(epoch) > last)]
    if len(kept) < len(lines):
        write_atomically(file, "".join(kept).encode())


_OTHER = object()


def _plain(value: Any) -> Any:
    """A value as JSON has it; _OTHER if it cannot."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        found = [_plain(each) for each in value]
        return _OTHER if any(each is _OTHER for each in found) else found
    if isinstance(value, dict):
        of_keys = {name: _plain(each) for name, each in value.items() if isinstance(name, str)}
        is_whole = len(of_keys) == len(value) and all(each is not _OTHER for each in of_keys.values())
        return of_keys if is_whole else _OTHER
    return _OTHER


def _is_same(value: Any, other: Any) -> bool:
    return bool(value == other and type(value) is type(other))
