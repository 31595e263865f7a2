"""Image files as Pillow reads them: what it raises, and their conversion to a size and a number of channels."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, UnidentifiedImageError

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name for each number of channels."""
_ERRORS = (OSError, ValueError, SyntaxError, TypeError, EOFError, IndexError, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged, or not images."""


class UnreadableImageError(Exception):
    """The bytes are not an image, or a damaged one."""


@contextmanager
def reading() -> Iterator[None]:
    """Turn what Pillow raises into an error that says what is wrong with the image.

    Raises:
        UnreadableImageError: the image cannot be decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata
            yield
    except UnidentifiedImageError:
        raise UnreadableImageError("it is not an image") from None
    except _ERRORS as error:
        raise UnreadableImageError(f"the image is damaged ({error})") from None


def convert(image: Image.Image, channels: int, size: tuple[int, int] | None) -> Image.Image:
    """An image with 8 bits for each of these channels.

    Args:
        image: A decoded image.
        channels: 1, 3 or 4.
        size: Height and width; None keeps those of the image.
    """
    if image.mode.startswith("I"):  # 16 bits
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert(MODES[channels])
    if size and (image.height, image.width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return image
