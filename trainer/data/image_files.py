"""Image files as Pillow reads them: what it raises, and their conversion to a size, channels and a scale."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
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


def decode(
    file: Path | IO[bytes],
    shape: tuple[int, int, int],
    *,
    is_resized: bool = True,
    formats: tuple[str, ...] | None = None,
) -> npt.NDArray[np.float32]:
    """An encoded image as a model takes it: float32 [height, width, channels] from 0 to 1, as in training.

    Args:
        file: The path of the image, or its bytes.
        shape: Height, width and channels.
        is_resized: Whether an image of another size is converted to this one.
        formats: Pillow's names of the formats that may be read; None allows all.

    Raises:
        UnreadableImageError: it is damaged, not an image of these formats, or of another size.
    """
    height, width, channels = shape
    with reading(), Image.open(file, formats=formats) as image:
        if not is_resized and (image.height, image.width) != (height, width):
            size = f"{image.height} x {image.width}"
            raise UnreadableImageError(f"its size is {size}, but {height} x {width} was expected")
        pixels = np.asarray(convert(image, channels, (height, width)), np.float32)
    scaled: npt.NDArray[np.float32] = pixels.reshape(shape) / np.float32(255)
    return scaled
