"""Examples: arrays of inputs and targets, one by one or in structures such as dictionaries.

The names are those of Keras: a model computes outputs from inputs, and the loss compares them with the targets. The
leaves of the structures are the flat lists that the rest of the package passes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import optree

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ArraySpec:
    """The array of one example, without the batch dimension."""

    shape: tuple[int | None, ...]
    dtype: str
    """The name of TensorFlow's type; texts are `string`."""

    @classmethod
    def of(cls, array: Array, shape: tuple[int | None, ...]) -> "ArraySpec":
        """The spec of examples of this shape in an array of examples."""
        return cls(shape, "string" if array.dtype.kind in "OSU" else array.dtype.name)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Signature:
    """What an example consists of."""

    structure: optree.PyTreeSpec
    """Of (inputs, targets, weight), where the weight of the example in the loss may be None, and so may targets."""
    specs: tuple[ArraySpec, ...]
    """The leaves of the structure."""
    classes: int | None = None
    """One more than the largest label; None if the targets are not labels, or their number is not known."""

    def pack(self, leaves: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The inputs, the targets and the weights of a batch, from its leaves."""
        inputs, targets, weights = optree.tree_unflatten(self.structure, leaves)
        return inputs, targets, weights

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """The specs of the inputs, by names for the exported model."""
        inputs, _, _ = self.pack(self.specs)
        if isinstance(inputs, ArraySpec):
            return {"images" if self.classes and inputs.dtype == "float32" else "inputs": inputs}
        return named(inputs, "input")

    @property
    def input_shape(self) -> tuple[int | None, ...] | None:
        """The shape of the input of one example; None if there are several inputs."""
        inputs, _, _ = self.pack(self.specs)
        return inputs.shape if isinstance(inputs, ArraySpec) else None

    @property
    def has_targets(self) -> bool:
        """Whether there are targets. Otherwise they are None, or () where examples are tuples of the inputs alone."""
        _, targets, _ = self.pack(self.specs)
        return targets is not None and targets != ()

    @property
    def has_labels(self) -> bool:
        """Whether the targets are class labels: one integer for each example."""
        _, targets, _ = self.pack(self.specs)
        return isinstance(targets, ArraySpec) and not targets.shape and targets.dtype.startswith("int")


def named(structure: Any, prefix: str) -> dict[str, Any]:
    """The leaves of a structure by names: the paths of their keys, such as `age` or `input_0`."""
    paths, leaves, _ = optree.tree_flatten_with_path(structure)
    names = ["_".join(map(str, path)) for path in paths]
    return {
        name if name and not name[0].isdigit() else f"{prefix}_{name}".rstrip("_"): leaf
        for name, leaf in zip(names, leaves, strict=True)
    }


@dataclass(frozen=True)
class Examples:
    """Examples in memory. Images are float32 with bytes scaled to [0, 1]; labels are int32."""

    inputs: Any
    """Arrays [n, …], or a structure of such arrays."""
    targets: Any
    weights: Array | None = None
    """Weights in the loss, float32 [n]."""

    @property
    def structure(self) -> Any:
        """The inputs, the targets and the weights."""
        return self.inputs, self.targets, self.weights

    @cached_property
    def arrays(self) -> Sequence[Array]:
        """The leaves, each [n, …]."""
        return optree.tree_leaves(self.structure)

    @cached_property
    def signature(self) -> Signature:
        """The signature of one example."""
        structure = optree.tree_structure(self.structure)
        specs = tuple(ArraySpec.of(array, array.shape[1:]) for array in self.arrays)
        signature = Signature(structure, specs)
        targets = self.targets
        is_one = isinstance(targets, np.ndarray) and targets.dtype.kind in "iu" and targets.shape[1:] in ((), (1,))
        if is_one and targets.min() >= 0:  # below 0 they are values, such as degrees
            return replace(signature, classes=1 + int(targets.max()))
        return signature

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return sum(array.nbytes for array in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def take(self, indices: Any) -> "Examples":
        """The examples with these indices, or of a slice."""
        return Examples(*optree.tree_map(lambda array: array[indices], self.structure))
