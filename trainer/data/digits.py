"""The handwritten digits that come with scikit-learn."""

import importlib.metadata

import numpy as np
import numpy.typing as npt

from trainer.data.arrays import hold_out, labelled
from trainer.data.examples import Examples


def load() -> tuple[Examples, Examples]:
    """The 1,797 handwritten digits of scikit-learn, resized to 28 x 28 as in MNIST; 360 of them are held out."""
    # Read the file directly: importing scikit-learn costs every replica a second of CPU time.
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",")
    pixels, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(int)
    resize = _interpolation(8, 28)
    images = resize @ (pixels / 16.0) @ resize.T
    return hold_out(labelled(images[..., np.newaxis], labels, "digits"), number=360)


def _interpolation(size: int, larger: int) -> npt.NDArray[np.float64]:
    """The matrix [larger, size] that interpolates linearly between pixel centers, as in bilinear resizing."""
    centres = np.clip((np.arange(larger) + 0.5) * size / larger - 0.5, 0, size - 1)
    below = np.minimum(centres.astype(int), size - 2)
    matrix = np.zeros((larger, size))
    rows = np.arange(larger)
    matrix[rows, below] = 1 - (centres - below)
    matrix[rows, below + 1] = centres - below
    return matrix
