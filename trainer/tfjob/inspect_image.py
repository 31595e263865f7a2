"""What an image runs: its Entrypoint and Cmd, from the local Docker, or from its registry by crane or skopeo.

It runs these programs, and reads only what they print. `parse` is pure.
"""

import json
import shutil
import subprocess

from trainer.errors import ConfigurationError
from trainer.text import truncate
from trainer.tfjob.program import Program

TIMEOUT_SECONDS = 60


def inspect(image: str) -> Program:
    """The program of an image.

    Raises:
        ConfigurationError: no program can read the image.
    """
    faults = []
    for command in (
        ["docker", "image", "inspect", "--", image],
        ["crane", "config", "--", image],
        ["skopeo", "inspect", "--config", f"docker://{image}"],
    ):
        name = command[0]
        if shutil.which(name) is None:
            faults.append(f"{name} is not on the PATH")
            continue
        try:
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            faults.append(f"{name} does not answer within {TIMEOUT_SECONDS} s")
            continue
        if done.returncode == 0:
            return parse(done.stdout, f"{name}'s answer about {image}")
        reason = truncate(" ".join(done.stderr.decode(errors="replace").split()), 160)
        faults.append(f"{name}: {reason or f'exit code {done.returncode}'}")
    raise ConfigurationError(
        f"--inspect: the image {image} cannot be read ({'; '.join(faults)}); pull it, or state --entrypoint."
    )


def parse(text: bytes, origin: str) -> Program:
    """The program in what `docker image inspect`, `crane config` or `skopeo inspect --config` print.

    Args:
        text: The output, JSON: a list of images with Config, or one image with config.
        origin: The output's name in errors.

    Raises:
        ConfigurationError: the text is none of these.
    """
    try:
        content = json.loads(text)
        config = (content[0]["Config"] if isinstance(content, list) else content["config"]) or {}
        entrypoint, arguments = config.get("Entrypoint") or [], config.get("Cmd") or []
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigurationError(f"--inspect: {origin} is not the configuration of an image.") from None
    for words in (entrypoint, arguments):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ConfigurationError(f"--inspect: {origin}: Entrypoint and Cmd must be lists of texts.")
    return Program(tuple(entrypoint), tuple(arguments))
