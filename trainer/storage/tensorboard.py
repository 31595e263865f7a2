"""TensorBoard on directories that may be on object stores.

With TensorFlow installed, TensorBoard reads files by TensorFlow, which has no S3. Its other implementation reads URIs
by `fsspec`, for which `obstore` has a file system.
"""

import os
import sys
import types
from collections.abc import Sequence

from trainer.storage.object_store import SCHEMES, is_uri


def run(words: Sequence[str]) -> None:
    """Run TensorBoard with these arguments until a signal ends it."""
    if any(is_uri(word.partition("=")[2] or word) for word in words):
        sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # TensorBoard looks for this module
        from obstore.fsspec import register

        for scheme in SCHEMES:
            register(scheme)
        if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            os.environ["AWS_ALLOW_HTTP"] = "true"
        words = [*words, "--load_fast=false"]  # the fast loader reads files itself
    from tensorboard import main

    sys.argv = ["tensorboard", *words]
    main.run_main()
