"""`python -m trainer.kernels`: compile the ops on rows of tables, and what gives requests their ids."""

import sys

from trainer import compiler
from trainer.errors import ConfigurationError


def main() -> int:
    """Compile; return the exit code."""
    try:
        if not any(compiler.FOLDER.glob("row_ops-*.so")):
            compiler.find()  # before the import of TensorFlow
        from trainer.kernels import library
        from trainer.tensorflow import request_ids

        print(f"compiled: {request_ids.build()}, {library.build()}")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
