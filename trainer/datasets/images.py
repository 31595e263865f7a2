"""Encoded images: checked, converted where TensorFlow does not read them as they are, and measured."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from trainer.data.image_files import convert, reading
from trainer.data.moments import Moments

_AS_THEY_ARE = {"PNG": {"L": 1, "RGB": 3, "RGBA": 4}, "JPEG": {"L": 1, "RGB": 3}}
"""The formats and modes that TensorFlow decodes to the pixels that Pillow decodes to, with the number of channels."""


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


def check(content: bytes, wanted: Shape | None) -> Encoded:
    """Decode an image as a check, and encode it again if that is needed.

    Args:
        content: The image in a format that Pillow reads.
        wanted: The shape to convert it to; None keeps its own.

    Raises:
        UnreadableImageError: the image cannot be decoded.
    """
    with reading(), Image.open(io.BytesIO(content)) as image:
        image.load()
        channels = _AS_THEY_ARE.get(image.format or "", {}).get(image.mode)
        shape = Shape(image.height, image.width, channels or 0)
        if channels is None or wanted not in (None, shape):
            return _encode(image, wanted)
        return Encoded(content, shape, Moments.of(np.asarray(image)))


def _encode(image: Image.Image, wanted: Shape | None) -> Encoded:
    channels = wanted.channels if wanted else 1 if image.mode in ("1", "L") or image.mode.startswith("I") else 3
    image = convert(image, channels, (wanted.height, wanted.width) if wanted else None)
    target = io.BytesIO()
    image.save(target, "PNG")
    return Encoded(target.getvalue(), Shape(image.height, image.width, channels), Moments.of(np.asarray(image)))
