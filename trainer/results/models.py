"""`trainer models`: its subcommands, each in a module of its own."""

from collections.abc import Sequence

from trainer.config import Parser
from trainer.mlflow import publish
from trainer.results import batch_inference, compare, delta, recommend


def main(words: Sequence[str]) -> int:
    """Run `trainer models` with these arguments; return its exit code.

    Raises:
        ConfigurationError: an argument is wrong, or names what cannot be read.
        StoreError: an object store or MLflow does not respond.
    """
    parser = Parser(prog="trainer models", description="Use trained models.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    compare.add(commands)
    batch_inference.add(commands)
    recommend.add(commands)
    delta.add(commands)
    publish.add(commands)
    arguments = parser.read(words)
    code: int = arguments.run(arguments)
    return code
