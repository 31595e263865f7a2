"""Encoded images: checked, converted where TensorFlow does not read them as they are, and measured."""

import io
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

from trainer.datasets.statistics import Moments

_AS_THEY_ARE = {"PNG": {"L": 1, "RGB": 3, "RGBA": 4}, "JPEG": {"L": 1, "RGB": 3}}
"""The formats and modes that TensorFlow decodes to the pixels that Pillow decodes to, with the number of channels."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_ERRORS = (OSError, ValueError, SyntaxError, TypeError, EOFError, IndexError, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged, or not images."""


@dataclass(frozen=True)
class Shape:
    """Height, width and channels of an image."""

    height: int
    width: int
    channels: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}x{self.channels}"


@dataclass(frozen=True)
class Encoded:
    """A PNG or a JPEG image."""

    content: bytes
    shape: Shape
    pixels: Moments


class UnreadableImageError(Exception):
    """The bytes are not an image, or a damaged one."""


def check(content: bytes, wanted: Shape | None) -> Encoded:
    """Decode an image as a check, and encode it again if that is needed.

    Args:
        content: The image in a format that Pillow reads.
        wanted: The shape to convert it to; None keeps its own.

    Raises:
        UnreadableImageError: the image cannot be decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata
            with Image.open(io.BytesIO(content)) as image:
                image.load()
                channels = _AS_THEY_ARE.get(image.format or "", {}).get(image.mode)
                shape = Shape(image.height, image.width, channels or 0)
                if channels is None or wanted not in (None, shape):
                    return _encode(image, wanted)
                return Encoded(content, shape, Moments.of(np.asarray(image)))
    except UnidentifiedImageError:
        raise UnreadableImageError("it is not an image") from None
    except _ERRORS as error:
        raise UnreadableImageError(f"the image is damaged ({error})") from None


def _encode(image: Image.Image, wanted: Shape | None) -> Encoded:
    channels = wanted.channels if wanted else 1 if image.mode in ("1", "L") or image.mode.startswith("I") else 3
    if image.mode.startswith("I"):  # 16 bits
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert(_MODES[channels])
    if wanted and (image.height, image.width) != (wanted.height, wanted.width):
        image = image.resize((wanted.width, wanted.height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    target = io.BytesIO()
    image.save(target, "PNG")
    return Encoded(target.getvalue(), Shape(image.height, image.width, channels), Moments.of(np.asarray(image)))
