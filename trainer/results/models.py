"""`trainer models`: its subcommands, each in a module of its own."""

from collections.abc import Sequence

from trainer.config import Parser
from trainer.results import batch_inference, compare


def main(words: Sequence[str]) -> int:
    """Run `trainer models` with these arguments; return its exit code.

    Raises:
        ConfigurationError: a model or the data cannot be read, or they do not fit.
        StoreError: an object store does not respond.
    """
    parser = Parser(prog="trainer models", description="Use trained models.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    compare.add(commands)
    batch_inference.add(commands)
    arguments = parser.read(words)
    arguments.run(arguments)
    return 0
