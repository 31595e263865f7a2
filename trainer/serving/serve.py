"""`trainer serve`: checks a packaged model, and serves it."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.config import Parser
from trainer.serving import model_folder

MODEL_DIR = Path("/model")


def main(words: Sequence[str]) -> int:
    """Run `trainer serve` with these arguments; return its exit code.

    Raises:
        ConfigurationError: the folder has no packaged model, or one that was altered.
    """
    parser = Parser(
        prog="trainer serve",
        description="Serve a packaged model by HTTP (TensorFlow Serving's REST API, the Open Inference Protocol,\n"
        "metrics) and gRPC (the Open Inference Protocol). make package-model makes an image that runs this.",
    )
    parser.add_argument("--model_dir", metavar="PATH", type=Path, default=MODEL_DIR, help="default: %(default)s")
    parser.add_argument("--http_port", metavar="N", type=_port, default=8080, help="default: %(default)s")
    parser.add_argument("--grpc_port", metavar="N", type=_port, default=8081, help="default: %(default)s")
    parser.add_argument(
        "--grace_seconds",
        metavar="N",
        type=int,
        default=25,
        help="how long to finish requests after SIGTERM (default: %(default)s)",
    )
    arguments = parser.read(words)
    # Process 1 of a container ignores signals without a handler. KServe sets others when it serves.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    record = model_folder.read(arguments.model_dir)
    from trainer.serving.predictor import Predictor

    predictor = Predictor(arguments.model_dir / model_folder.EXPORT)
    sys.argv = sys.argv[:1]  # KServe reads the command line when it is imported
    from trainer.serving import kserve_model

    kserve_model.serve(record, predictor, arguments.http_port, arguments.grpc_port, arguments.grace_seconds)
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 1 to 65535")
    return int(text)
