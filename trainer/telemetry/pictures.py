"""Examples as pictures: arrays [height, width, channels] as PNG files."""

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's number for each number of channels: grey, RGB and RGBA."""
FONT = {
    "0": 0o75557,
    "1": 0o26227,
    "2": 0o71747,
    "3": 0o71317,
    "4": 0o55711,
    "5": 0o74717,
    "6": 0o74757,
    "7": 0o71122,
    "8": 0o75757,
    "9": 0o75717,
    ">": 0o42124,
}
"""Signs of 3 x 5 pixels: an octal digit for each row."""


def is_picture(shape: Sequence[int | None]) -> bool:
    """Whether an array of this shape can be shown: [height, width, channels] with 1, 3 or 4 channels."""
    return len(shape) == 3 and None not in shape and min(map(int, shape[:2])) > 1 and shape[2] in COLOUR_TYPES  # type: ignore[arg-type]


def to_bytes(image: Array, largest: int) -> Array:
    """The image as bytes, shrunk so that neither side is longer than `largest`.

    Values from 0 to 1 are from black to white. If others occur, such as those of standardised images, the smallest
    value is black and the largest is white.
    """
    factor = math.ceil(max(image.shape[:2]) / largest)
    if factor > 1:
        height, width = (size // factor * factor for size in image.shape[:2])
        blocks = image[:height, :width].reshape(height // factor, factor, width // factor, factor, -1)
        image = blocks.mean(axis=(1, 3))
    low, high = min(0.0, float(image.min())), max(1.0, float(image.max()))
    if (low, high) != (0.0, 1.0):
        low, high = float(image.min()), float(image.max())
    return np.asarray(np.rint((image - low) / max(high - low, 1e-12) * 255), np.uint8)


def to_png(pixels: Array) -> bytes:
    """The PNG file of an image of bytes [height, width, channels]."""
    height, width, channels = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def with_caption(pixels: Array, text: str) -> Array:
    """The image above a line of text in white on black, of digits and >; what does not fit is cut off."""
    sign_width, height = 4, 7
    line = np.zeros((height, max(pixels.shape[1], 1), pixels.shape[2]), np.uint8)
    for place, sign in enumerate(text):
        left = 1 + place * sign_width
        rows = [FONT[sign] >> 3 * (4 - row) & 7 for row in range(5)]
        bits = np.array([[bits >> 2 - column & 1 for column in range(3)] for bits in rows], np.uint8) * 255
        room = line[1:6, left : left + 3]
        room[...] = bits[:, : room.shape[1], np.newaxis]
    if pixels.shape[2] == 4:
        line[..., 3] = 255
    return np.concatenate([pixels, line])


def tile(images: Sequence[Array], columns: int, gap: int = 2) -> Array:
    """Images of one size side by side in rows, with some black pixels between them."""
    height, width, channels = images[0].shape
    rows, columns = math.ceil(len(images) / columns), min(columns, len(images))
    whole = np.zeros((rows * (height + gap), columns * (width + gap), channels), np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        whole[top : top + height, left : left + width] = image
    return whole[: whole.shape[0] - gap, : whole.shape[1] - gap]
