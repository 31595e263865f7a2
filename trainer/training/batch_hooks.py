"""Which hooks for batches Keras's callbacks have, and after how many steps these must be called."""

import math
from collections.abc import Sequence
from typing import Any

TRAIN = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
LEFT_OUT = {
    "BackupAndRestore": "train_dir does what it does",
    "SwapEMAWeights": "evaluations and the export have the averages of use_ema",
}
"""Keras's callbacks that the trainer replaces: how."""


def interval(callbacks: Sequence[Any]) -> int | None:
    """The steps after which hooks for batches are called; None if there are none, or any steps will do.

    Each step, unless the hook is one of Keras's own that acts every so many batches.
    """
    found = [steps for each in callbacks if (steps := _interval(each))]
    return math.gcd(*found) if found else None


def with_hooks(callbacks: Sequence[Any]) -> list[Any]:
    """Those of the callbacks whose hooks for batches are called: not those that do nothing here but count time."""
    import keras

    return [each for each in callbacks if _interval(each) or isinstance(each, keras.callbacks.TerminateOnNaN)]


def _interval(callback: Any) -> int | None:
    import keras

    hooks = [name for name in TRAIN if not _is_default(callback, name)]
    if not hooks:
        return None
    if any(not _is_of_keras(callback, name) for name in hooks):
        return 1
    if isinstance(callback, (keras.callbacks.TerminateOnNaN, keras.callbacks.ProgbarLogger)):
        return None
    if isinstance(callback, keras.callbacks.TensorBoard):
        return None if callback.update_freq == "epoch" else 1
    frequency = getattr(callback, "save_freq", 1)
    return frequency if isinstance(frequency, int) else None


def _is_default(callback: Any, name: str) -> bool:
    return bool(getattr(getattr(callback, name), "_is_default", False))


def _is_of_keras(callback: Any, name: str) -> bool:
    function = getattr(callback, name)
    module: str = getattr(function, "__module__", None) or ""
    return module.split(".")[0] == "keras" and getattr(function, "__self__", None) is callback
