"""How many examples a graph can compute at once in little memory."""

import math

from trainer.tensorflow_types import Graph

LARGEST_BYTES = 32 << 20
"""Upper limit of the largest tensor. A few of its size are in memory at the same time."""


def bytes_of_example(graph: Graph) -> int:
    """The size of the largest tensor of a graph for each example, of those whose first dimension is the batch's.

    Tensors of which other dimensions vary too do not count.
    """
    largest = 1
    for op in graph.get_operations():
        for each in op.outputs:
            dimensions = each.shape.as_list() if each.shape.rank else [0]
            if dimensions[0] is None and None not in dimensions[1:] and each.dtype.size:
                largest = max(largest, math.prod(dimensions[1:]) * each.dtype.size)
    return largest


def fitting(graph: Graph, most: int) -> int:
    """The examples, at most this many, of which no tensor is above LARGEST_BYTES."""
    return max(1, min(most, LARGEST_BYTES // bytes_of_example(graph)))
