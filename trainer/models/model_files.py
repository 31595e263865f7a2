"""Finds the model that a run names: a built-in one, or that of a Python file."""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import cast

from tensorflow.python.eager import context  # not public API; a model file runs in eager mode

from trainer.config import RunSettings
from trainer.data.examples import Array
from trainer.errors import ConfigurationError
from trainer.models import BUILT_IN, Model, ModelFunctions
from trainer.models.keras_model import KerasModel
from trainer.models.ops_model import OpsModel
from trainer.text.reasons import reason


def load(name: str) -> ModuleType:
    """The module of the built-in model of this name, or of a Python file.

    Raises:
        ConfigurationError: the model or file does not exist, or cannot be imported.
    """
    if name in BUILT_IN:
        return importlib.import_module(f"trainer.models.{name}")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        known = ", ".join(BUILT_IN)
        raise ConfigurationError(f"model={name!r}, but {known} or the path of a Python file was expected.")
    return _load(path)


def model_of(
    module: ModuleType,
    settings: RunSettings,
    table: Array | None = None,
    class_weight: Mapping[int, float] | None = None,
) -> Model:
    """The model of a module.

    Args:
        module: The module.
        settings: The settings of the run.
        table: The inputs to train on, float32 [n, columns]: the built-in `mlp` standardizes the columns.
        class_weight: The weight in the loss of examples with each label, for a Keras model.

    Raises:
        ConfigurationError: the module lacks its functions, or cannot use a setting.
    """
    name = settings.model
    if callable(getattr(module, "model", None)):
        if settings.initial_weights:
            _check_weights(settings.initial_weights)
        return KerasModel(
            name, module.model, settings.seed, settings.initial_weights, class_weight, settings.batch_size
        )
    if settings.initial_weights:
        raise ConfigurationError(
            f"initial_weights={settings.initial_weights} is for Keras models, but model={name} is none; remove it."
        )
    functions = [each for each in ("parameters", "logits") if callable(getattr(module, each, None))]
    if not functions:
        raise ConfigurationError(
            f"model={name} does not define the function model(), which returns a keras.Model; see docs/your-model.md."
        )
    if len(functions) == 1:
        (missing,) = {"parameters", "logits"} - set(functions)
        raise ConfigurationError(
            f"model={name} does not define the function {missing}; see trainer/models/mlp.py for an example."
        )
    standardized = table if name == "mlp" else None
    return OpsModel(name, cast(ModelFunctions, module), settings.hidden_units, standardized)


def _check_weights(path: Path) -> None:
    if not path.is_file():
        raise ConfigurationError(f"initial_weights={path} does not exist; name a .keras or .weights.h5 file.")
    if not path.name.endswith((".keras", ".weights.h5")):
        raise ConfigurationError(f"initial_weights={path} is neither a .keras nor a .weights.h5 file of Keras's.")


def _load(path: Path) -> ModuleType:
    """Import a model file."""
    if "keras" in path.read_text(errors="replace"):
        _provide_keras()
    file = str(path.resolve())
    # Dataclasses, pickle and Keras look a class's module up by its name, as `import` enters it.
    is_free = path.stem not in sys.modules or getattr(sys.modules[path.stem], "__file__", None) == file
    name = path.stem if is_free else f"own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"model={path} cannot be imported; name a Python source file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if (folder := str(Path(file).parent)) not in sys.path:
        sys.path.append(folder)  # for the file's own helpers
    try:
        with context.eager_mode():
            spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigurationError(f"model={path} cannot be imported: {reason(error, str(path))}.") from error
    return module


def _provide_keras() -> None:
    """Let `import keras` and `tf.keras` give Keras 3 on TensorFlow, although the trainer's own start omits Keras."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    from trainer.tensorflow import tf  # isort: skip - Keras's own import of TensorFlow would log to stderr
    import keras
    from keras._tf_keras import keras as tf_keras  # with the old backend functions, as tensorflow itself has it

    tf.keras = tf_keras
    for name in [name for name in sys.modules if name.startswith(tf_keras.__name__)]:
        sys.modules[f"tensorflow.keras{name.removeprefix(tf_keras.__name__)}"] = sys.modules[name]
    keras.utils.clear_session()  # names of layers have numbers, which must not depend on earlier models


def identify(name: str) -> str:
    """A unique identifier of the model: its name, or its file name without the suffix and a digest of the file."""
    path = Path(name)
    return f"{path.stem} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}" if path.suffix == ".py" else name
