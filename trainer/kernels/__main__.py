"""`python -m trainer.kernels`: compile the ops on rows of tables."""

import sys

from trainer.errors import ConfigurationError
from trainer.kernels import compiler


def main() -> int:
    """Compile; return the exit code."""
    try:
        if not any(compiler.FOLDER.glob("row_ops-*.so")):
            compiler.find()  # before the import of TensorFlow
        from trainer.kernels import library

        print(f"the ops on rows of tables are compiled: {library.build()}")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
