"""Loads the file of a model, as training does, and says in one sentence why it cannot be trained.

python -m trainer.models FILE [ARGUMENTS]

A function `model` that needs nothing of the data is called too: it compiles the model.
"""

import sys

from trainer.config import RunSettings
from trainer.errors import EXIT_CONFIGURATION, ConfigurationError
from trainer.models import keras_loader, model_files


def main() -> int:
    """Load the file; return the exit code."""
    name, arguments = sys.argv[1], "".join(sys.argv[2:3])
    try:
        module = model_files.load(name, arguments)
        model_files.model_of(module, RunSettings(model=name))
        function = getattr(module, "model", None)
        if callable(function) and not keras_loader.needs_data(function):
            keras_loader.make(name, function, 0, None)
    except ConfigurationError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION
    return 0


if __name__ == "__main__":
    sys.exit(main())
