"""A process of plain Keras: it trains model files with `fit`, and loads what a run has exported.

It imports nothing of the trainer but what a model file does. It reads a request in each line of its input, and answers
each with one line. The arrays go into a file of NumPy's.
"""

import contextlib
import gc
import importlib.util
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
import keras
import numpy as np
import tensorflow as tf

Arrays = dict[str, Any]
SEED_STATE = "seed_generator_state"


def _begin(path: Path) -> ModuleType:
    """The module of a model file, in a Keras without earlier models."""
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    # Grappler changes the order of sums. The trainer does not use it on CPUs.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not getattr(module, "GRAPPLER", True)})
    return module


def _data(module: ModuleType, name: str, batch_size: int) -> Any:
    context = SimpleNamespace(data_dir="", batch_size=batch_size, seed=0, replica=0, replicas=1)
    return getattr(module, name)(context)


def _split(data: Any) -> tuple[Any, Any, Any]:
    """The inputs, the targets and the weights of arrays."""
    return data if len(data) == 3 else (*data, None)


def fit(path: Path, steps: int, batch_size: int) -> Arrays:
    """Train a model file; return the losses, the weights, and what the held-out split gives."""
    module = _begin(path)
    train, test = (_data(module, name, batch_size) for name in ("train_data", "test_data"))
    keras.utils.set_random_seed(0)
    model = module.model()
    how = {"epochs": steps, "shuffle": False, "verbose": 0}
    if not isinstance(train, tuple):
        if isinstance(train, tf.data.Dataset):
            is_batched = getattr(module, "HAS_BATCHES", False)
            train = train.repeat() if is_batched else train.repeat().batch(batch_size, drop_remainder=True)
            test = test if is_batched else test.batch(batch_size)
        history = model.fit(train, steps_per_epoch=1, **how)
        evaluation = model.evaluate(test, verbose=0, return_dict=True)
        first = test.take(1) if isinstance(test, tf.data.Dataset) else test
        predictions = model.predict(first, verbose=0)
    else:
        x, y, weights = _split(train)
        history = model.fit(x, y, sample_weight=weights, batch_size=batch_size, **how)
        x, y, weights = _split(test)
        evaluation = model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
        predictions = model.predict(x, verbose=0)
    return {
        **_metrics("train", {name: np.array(values) for name, values in history.history.items()}, 1),
        **_metrics("test", {name: np.array(value) for name, value in evaluation.items()}, 0),
        **_weights(_saved(model, path) if getattr(module, "IS_SAVED_OTHERWISE", False) else model),
        **_predictions(predictions),
    }


def _dealt(arrays: tuple[Any, ...], size: int) -> Any:
    """A dataset of batches of arrays in the trainer's order: a permutation by the seed and the epoch."""
    arrays = tuple(np.asarray(each) for each in arrays)
    epochs = itertools.count()

    def batches() -> Iterator[tuple[Any, ...]]:
        order = np.random.default_rng([0, next(epochs)]).permutation(len(arrays[0]))
        for start in range(0, len(order), size):
            yield tuple(each[order[start : start + size]] for each in arrays)

    specs = tuple(tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in arrays)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=specs)
    # Without it, fit tries a batch more in each epoch, for which it calls hooks and counts in a Mean.
    return dataset.apply(tf.data.experimental.assert_cardinality(-(-len(arrays[0]) // size)))


def train(path: Path) -> Arrays:
    """Train a model file with its own arguments of `fit`; return the weights. Its callbacks write the logs."""
    module = _begin(path)
    arguments = module.fit_arguments()
    size = arguments.pop("batch_size", 0)
    found, test = (_data(module, name, size) for name in ("train_data", "test_data"))
    if isinstance(found, tf.data.Dataset):
        found = found if getattr(module, "HAS_BATCHES", False) else found.batch(size)
        arguments.pop("steps_per_epoch", None)
    elif arguments.get("shuffle", True):
        found = _dealt(found, size)
    if isinstance(test, tf.data.Dataset) and not getattr(module, "HAS_BATCHES", False):
        test = test.batch(size)
    x, y, weights = (found, None, None) if isinstance(found, tf.data.Dataset) else _split(found)
    arguments |= {} if y is None else {"batch_size": size}
    keras.utils.set_random_seed(0)
    model = module.model()
    model.fit(x, y, sample_weight=weights, validation_data=test, verbose=0, **arguments)
    return _weights(model)


def _metrics(split: str, values: Arrays, rank: int) -> Arrays:
    """Curves (rank 1) or numbers (rank 0) by the name of a metric; one of several values has a name for each."""
    found: Arrays = {}
    for name, value in values.items():
        several = [value] if value.ndim == rank else np.moveaxis(value, -1, 0)
        found |= {f"{split}/{name}" + f"_{index}" * (value.ndim > rank): each for index, each in enumerate(several)}
    return found


def load(path: Path, export: Path, batch_size: int) -> Arrays:
    """The weights and the predictions of an exported Keras model, and the predictions of the SavedModel beside it."""
    module = _begin(path)
    test = _data(module, "test_data", batch_size)
    if isinstance(test, tf.data.Dataset):
        test = next(iter(test if getattr(module, "HAS_BATCHES", False) else test.batch(batch_size)))
    elif not isinstance(test, tuple):
        test = test[0]
    x = _split(test)[0]
    model = _load_model(module, export, x)
    served = tf.saved_model.load(str(export)).signatures["serving_default"]
    wanted = served.structured_input_signature[1]
    given = {f"input_{name}" if name[0].isdigit() else name: value for name, value in _named(x, "input").items()}
    if len(given) == 1 and len(wanted) == 1:
        given = {next(iter(wanted)): next(iter(given.values()))}
    outputs = served(**{name: tf.cast(_padded(value), wanted[name].dtype) for name, value in given.items()})
    return {
        **_weights(model),
        **_predictions(model(x, training=False)),
        **{f"served/{name}": value.numpy() for name, value in outputs.items()},
    }


def _padded(value: Any) -> Any:
    """What the SavedModel takes for a ragged tensor."""
    is_ragged = isinstance(value, tf.RaggedTensor)
    return value.to_tensor(np.nan if value.dtype.is_floating else -1) if is_ragged else value


def _load_model(module: ModuleType, export: Path, x: Any) -> Any:
    """The exported model; that of the file with the exported weights if Keras cannot load it, as without get_config."""
    file = export / "model.keras"
    own = {name: value for name, value in vars(module).items() if callable(value)}
    if file.exists():
        with contextlib.suppress(TypeError):
            return keras.saving.load_model(file, custom_objects=own, safe_mode=False)
    model = module.model()
    model(x)
    model.load_weights(file if file.exists() else export / "model.weights.h5")
    return model


def _saved(model: Any, path: Path) -> Any:
    """The model as Keras saves and loads it."""
    file = path.with_suffix(".keras")
    model.save(file)
    return keras.saving.load_model(file)


def _weights(model: Any) -> Arrays:
    """The weights by position and name, without the states of random number generators."""
    kept = [each for each in model.weights if each.name != SEED_STATE]
    return {f"weight/{number} {each.name}": keras.ops.convert_to_numpy(each) for number, each in enumerate(kept)}


def _predictions(outputs: Any) -> Arrays:
    return {f"prediction/{name}": np.asarray(value) for name, value in _named(outputs, "output").items()}


def _named(structure: Any, prefix: str) -> Arrays:
    """The leaves of a dictionary, of a list or of a single array, by names as those of the SavedModel."""
    if isinstance(structure, dict):
        return structure
    if isinstance(structure, (list, tuple)):
        return {f"{prefix}_{number}": each for number, each in enumerate(structure)}
    return {f"{prefix}s": structure}


FUNCTIONS: dict[str, Callable[..., Arrays]] = {"fit": fit, "load": load, "train": train}


def _answer(request: dict[str, Any]) -> str:
    function, out = FUNCTIONS[request.pop("do")], request.pop("out")
    arguments = {name: Path(value) if name in ("path", "export") else value for name, value in request.items()}
    try:
        np.savez(out, **{name.replace("/", "|"): value for name, value in function(**arguments).items()})
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Answer each request."""
    gc.freeze()  # Keras collects for each model, and takes a fifth of a second
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what models print
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
