"""Names for TensorFlow's graph objects in annotations. TensorFlow has no types for them, so mypy treats each as `Any`.

Docstrings give the shape and the element type of a tensor. This module does not import TensorFlow.
"""

from typing import Any, TypeAlias

Graph: TypeAlias = Any
Operation: TypeAlias = Any
"""An operation that is run for its effect, or that others wait for."""
Session: TypeAlias = Any
Tensor: TypeAlias = Any
"""The symbolic output of an operation."""
Variable: TypeAlias = Any
