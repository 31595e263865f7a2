"""Loads the file of a model, as training does, and says in one sentence why it cannot be loaded.

python -m trainer.models FILE [ARGUMENTS]
"""

import sys

from trainer.errors import EXIT_CONFIGURATION, ConfigurationError
from trainer.models import model_files


def main() -> int:
    """Load the file; return the exit code."""
    try:
        model_files.load(*sys.argv[1:])
    except ConfigurationError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION
    return 0


if __name__ == "__main__":
    sys.exit(main())
