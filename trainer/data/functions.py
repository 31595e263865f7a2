"""Calls the functions of a model's file."""

from types import ModuleType
from typing import Any

from trainer.errors import ConfigurationError
from trainer.tensorflow.private import eager_mode
from trainer.text.reasons import reason


def call(module: ModuleType, function: str, name: str, *given: Any) -> Any:
    """What a function returns, which runs in eager mode.

    Args:
        module: That of the file.
        function: The function's name.
        name: The file's name, for errors.
        given: Its arguments.

    Raises:
        ConfigurationError: it fails.
    """
    with eager_mode():
        try:
            return getattr(module, function)(*given)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(f"model={name}: {function}() failed: {reason(error, name)}.") from error
