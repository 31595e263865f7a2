"""`trainer serve`: finds a model, and serves it."""

import argparse
import functools
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainer.config import Parser
from trainer.errors import AbsentError, StoreError
from trainer.serving import sources

if TYPE_CHECKING:
    from trainer.serving.follower import Follower
    from trainer.serving.predictor import Predictor

MODEL = "/model"
"""Where the image of a packaged model has it."""
WAIT_SECONDS = 5.0

Found = TypeVar("Found")


def read(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments.

    Raises:
        ConfigurationError: an argument is unknown, or its value is wrong.
    """
    parser = Parser(
        prog="trainer serve",
        description="Serve a model by HTTP (TensorFlow Serving's REST API, the Open Inference Protocol,\n"
        "metrics) and gRPC (the Open Inference Protocol). make package-model makes an image that runs this.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=MODEL,
        help="the folder of a packaged model, the directory of a run, an export/STEP folder, or models:/NAME/VERSION "
        "or models:/NAME@ALIAS of MLflow (default: %(default)s)",
    )
    parser.add_argument(
        "--name", help="the model's name in URLs (default: that of the packaged or registered model, or of the data)"
    )
    parser.add_argument("--tracking_uri", metavar="URI", help="MLflow server (default: MLFLOW_TRACKING_URI)")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="follow a run that trains with publish_seconds: take over what it learns while it answers requests",
    )
    parser.add_argument("--wait", action="store_true", help="wait until the model is there and MLflow responds")
    parser.add_argument("--http_port", metavar="N", type=_port, default=8080, help="default: %(default)s")
    parser.add_argument("--grpc_port", metavar="N", type=_port, default=8081, help="default: %(default)s")
    parser.add_argument(
        "--grace_seconds",
        metavar="N",
        type=int,
        default=25,
        help="how long to finish requests after SIGTERM (default: %(default)s)",
    )
    return parser.read(words)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code.

    Raises:
        ConfigurationError: there is no such model, or it is damaged or altered.
        StoreError: MLflow does not respond.
    """
    # Process 1 of a container ignores signals without a handler. KServe sets others when it serves.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    with tempfile.TemporaryDirectory() as folder:
        source = _find(arguments, Path(folder))
        served = _follow(arguments) if arguments.follow else _load(source)
    sys.argv = sys.argv[:1]  # KServe reads the command line when it is imported
    from trainer.serving import kserve_model

    kserve_model.serve(source, served, arguments.http_port, arguments.grpc_port, arguments.grace_seconds)
    return 0


def _load(source: sources.Source) -> "Predictor":
    from trainer.serving.predictor import Predictor  # slow

    return Predictor(source.export)


def _follow(arguments: argparse.Namespace) -> "Follower":
    from trainer.serving.follower import Follower  # slow

    return _when_there(arguments.wait, lambda: Follower(Path(arguments.model), _say))


def _say(sentence: str) -> None:
    print(f"trainer: {sentence}", file=sys.stderr, flush=True)


def _find(arguments: argparse.Namespace, folder: Path) -> sources.Source:
    """Find the model; with --wait, as soon as it is there."""
    find = functools.partial(sources.find, arguments.model, arguments.name, arguments.tracking_uri, folder)
    return _when_there(arguments.wait, find)


def _when_there(waits: bool, find: Callable[[], Found]) -> Found:
    """What a function finds; if it `waits`, as soon as it is there."""
    said = ""
    while True:
        try:
            return find()
        except (AbsentError, StoreError) as error:
            if not waits:
                raise
            if str(error) != said:
                said = str(error)
                _say(f"waiting for the model: {said}")
        time.sleep(WAIT_SECONDS)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number from 1 to 65535")
    return int(text)
