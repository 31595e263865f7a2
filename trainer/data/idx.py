"""IDX files, the format of MNIST (http://yann.lecun.com/exdb/mnist/)."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.errors import ConfigurationError

CHUNK = 2**20


def read(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of bytes, gzipped or plain, as an array.

    It takes no more memory than the content needs, whatever the header declares, and reads no more than it declares.

    Raises:
        ConfigurationError: it is damaged, or not an IDX file of this many dimensions.
    """
    header = 4 * (1 + dimensions)
    expected = 0x0800 + dimensions
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(header)
            if len(start) < header or struct.unpack(">I", start[:4])[0] != expected:
                raise ConfigurationError(
                    f"{path}: not an IDX file of bytes in {dimensions} dimensions; its first four bytes must be "
                    f"{expected:08x}."
                )
            shape = struct.unpack(f">{dimensions}I", start[4:])
            declared = math.prod(shape)
            if not declared:
                raise ConfigurationError(
                    f"{path}: the header declares {list(shape)}, so it has no examples; add at least 1."
                )
            content = bytearray()
            while len(content) <= declared and (chunk := file.read(CHUNK)):
                content += chunk
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(
            f"{path}: the file is damaged or truncated ({error}); delete it and download it again."
        ) from None
    if len(content) != declared:
        found = "more" if len(content) > declared else header + len(content)
        raise ConfigurationError(
            f"{path}: the header declares {header + declared} bytes, but the file has {found}; download it again."
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
