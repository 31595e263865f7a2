"""The order in which a replica takes examples."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt


def orders(examples: int, size: int, seed: Sequence[int]) -> Iterator[npt.NDArray[np.int32]]:
    """Endless batches of indices, int32 [size], below `examples`. The seed determines a new order for each epoch.

    A batch may span two epochs, so all batches have the same size and all examples occur equally often.
    """
    random = np.random.default_rng(list(seed))
    order = np.empty(0, np.int32)
    while True:
        while len(order) < size:
            order = np.concatenate([order, random.permutation(examples).astype(np.int32)])
        indices, order = order[:size], order[size:]
        yield indices
