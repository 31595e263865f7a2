"""Helpers for tests of `trainer data`: the command in this process, and raw files."""

import json
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest
from PIL import Image

from trainer.datasets import commands
from trainer.datasets.importing import Progress


class DataCommand:
    """Runs `trainer data WORDS…` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def json(self, *words: str | Path) -> Any:
        """Return what it prints with --json."""
        return json.loads(self.text(*words, "--json"))

    def text(self, *words: str | Path) -> str:
        """Return what it prints."""
        self._capsys.readouterr()
        commands.run(commands.parser().read([str(word) for word in words]), Progress())
        return self._capsys.readouterr().out


def write_images(folder: Path, images: npt.NDArray[Any], labels: list[str]) -> None:
    """Write a PNG file for each image, in the folder of its class."""
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{index:04}.png")
