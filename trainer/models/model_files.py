"""Finds the model that a run names: a built-in one, or that of a Python file, folder or module."""

import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import cast

from trainer.config import BUILT_IN_MODELS, RunSettings
from trainer.errors import ConfigurationError
from trainer.models import Model, ModelFunctions, scripts, towers
from trainer.models.keras_model import KerasModel
from trainer.models.ops_model import OpsModel
from trainer.tensorflow.private import eager_mode
from trainer.text.reasons import reason

logger = logging.getLogger(__name__)

PACKAGE_FILES = ("__init__.py", "model.py")
"""The files of a folder that is a model."""


def load(name: str, arguments: str = "") -> ModuleType:
    """The module of the built-in model of this name, of a Python file or folder, or of this name.

    Args:
        name: The name, or the path.
        arguments: What the file finds in `sys.argv` after its own name, as words of a shell.

    Raises:
        ConfigurationError: the model or file does not exist, or cannot be imported.
    """
    if name in BUILT_IN_MODELS:
        return importlib.import_module(f"trainer.models.{name}")
    if is_module := _is_module_name(name):
        provide_keras()  # to find it imports the packages around it
    file = _find(name)
    if not is_module and any("keras" in each.read_text(errors="replace") for each in _sources(file)):
        provide_keras()
    for sentence in scripts.problems(file):
        logger.warning(f"model={name}: {sentence}")
    sys.argv = [str(file), *_words(arguments)]
    try:
        with eager_mode():
            return importlib.import_module(name) if is_module else _import(file)
    except SystemExit as error:
        raise ConfigurationError(
            f"model={name} ends the program when it is imported with the arguments {arguments or 'none'} "
            f"({reason(error, str(file))}); it gets those after --, as in trainer train --model {name} -- --units 32."
        ) from error
    except Exception as error:
        raise ConfigurationError(f"model={name} cannot be imported: {reason(error, str(file))}.") from error


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise ConfigurationError(
            f"model_arguments={arguments!r}, but words as in a shell were expected: {str(error).lower()}."
        ) from None


def _is_module_name(name: str) -> bool:
    return not name.endswith(".py") and all(each.isidentifier() for each in name.split(".")) and not Path(name).exists()


def _find(name: str) -> Path:
    """The file of a model: a Python file, that of a folder or a package, or that of a module.

    Raises:
        ConfigurationError: there is none.
    """
    path = Path(name or "-")  # an empty path is the working directory
    files = [path / each for each in PACKAGE_FILES] if path.is_dir() else [path] if path.suffix == ".py" else []
    if found := next((each for each in files if each.is_file()), None):
        return found
    if _is_module_name(name):
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        spec = None
        with eager_mode(), contextlib.suppress(ImportError):
            spec = importlib.util.find_spec(name)
        if spec and spec.origin and Path(spec.origin).is_file():
            return Path(spec.origin)
    if path.is_dir():
        raise ConfigurationError(
            f"model={name!r}: the folder has no {' and no '.join(PACKAGE_FILES)}; add one of them."
        )
    known = ", ".join(BUILT_IN_MODELS)
    raise ConfigurationError(
        f"model={name!r}, but {known}, the path of a Python file or folder, or the name of a module was expected."
    )


def _sources(file: Path) -> list[Path]:
    """The Python files of a model: those of its package, or its file alone."""
    return sorted(file.parent.rglob("*.py")) if file.name == PACKAGE_FILES[0] else [file]


def model_of(
    module: ModuleType,
    settings: RunSettings,
    class_weight: Mapping[int, float] | None = None,
    has_callbacks: bool = False,
) -> Model:
    """The model of a module.

    Args:
        module: The module.
        settings: The settings of the run.
        class_weight: The weight in the loss of examples with each label, for a Keras model.
        has_callbacks: Whether callbacks follow the training of a Keras model.

    Raises:
        ConfigurationError: the module lacks its functions, or cannot use a setting.
    """
    name = settings.model
    if callable(getattr(module, "model", None)):
        if settings.initial_weights:
            _check_weights(settings.initial_weights)
        return KerasModel(
            name,
            module.model,
            settings.seed,
            settings.initial_weights,
            class_weight,
            settings.table_rows,
            has_callbacks,
            module.towers if towers.are_named(module) else None,
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
    return OpsModel(name, cast(ModelFunctions, module), settings.hidden_units)


def _check_weights(path: Path) -> None:
    if not path.is_file():
        raise ConfigurationError(f"initial_weights={path} does not exist; name a .keras or .weights.h5 file.")
    if not path.name.endswith((".keras", ".weights.h5")):
        raise ConfigurationError(f"initial_weights={path} is neither a .keras nor a .weights.h5 file of Keras's.")


def _import(path: Path) -> ModuleType:
    """Import a model file, or a package by its `__init__.py`."""
    file, is_package = path.resolve(), path.name == PACKAGE_FILES[0]
    wanted = file.parent.name if is_package else file.stem
    # Dataclasses, pickle and Keras look a class's module up by its name, as `import` enters it.
    is_free = wanted not in sys.modules or getattr(sys.modules[wanted], "__file__", None) == str(file)
    name = wanted if is_free else f"own_{wanted}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(file.parent)] if is_package else None
    )
    assert spec is not None  # noqa: S101 - of a file whose name ends in .py
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if (folder := str(file.parent)) not in sys.path:
        sys.path.append(folder)  # for the file's own helpers
    spec.loader.exec_module(module)
    return module


def provide_keras() -> None:
    """Let `import keras` and `tf.keras` give Keras 3 on TensorFlow, although the trainer's own start omits Keras."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    from trainer.tensorflow import tf  # isort: skip - Keras's own import of TensorFlow would log to stderr
    import keras

    from trainer.models.keras_private import tf_keras

    tf.keras = tf_keras
    for name in [name for name in sys.modules if name.startswith(tf_keras.__name__)]:
        sys.modules[f"tensorflow.keras{name.removeprefix(tf_keras.__name__)}"] = sys.modules[name]
    keras.utils.clear_session()  # names of layers have numbers, which must not depend on earlier models


def identify(name: str) -> str:
    """A unique identifier of the model: its name, or that of its file or package and a digest of the sources."""
    if name in BUILT_IN_MODELS:
        return name
    file = _find(name)
    digest = hashlib.sha256()
    for each in _sources(file):
        digest.update(each.read_bytes())
    is_folder = Path(name).is_dir() or file.name == PACKAGE_FILES[0]
    return f"{file.resolve().parent.name if is_folder else file.stem} {digest.hexdigest()[:12]}"
