"""YAML of bounded size: aliases and merge keys let a few lines stand for billions of values.

Pure: text in, values out.
"""

from typing import Any

import yaml

MAX_VALUES = 1_000_000
"""The most values of a document, where each alias counts as what it stands for."""
MAX_DIGITS = 1000
"""Python refuses to print integers of more than 4,300 digits, but reads them in hexadecimal."""


def load_all(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> list[Any]:
    """The documents of a YAML text.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: the text is not YAML, or stands for more than `MAX_VALUES` values.
    """
    reader = loader(text)
    try:
        found = []
        while reader.check_node():
            node = reader.get_node()
            if node is not None and _size(node, {}) > MAX_VALUES:
                raise yaml.YAMLError(f"its aliases stand for more than {MAX_VALUES:,} values")
            found.append(reader.construct_document(node))
        return found
    finally:
        reader.dispose()


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """The number of values in a node. A node that contains itself counts once there."""
    if node.tag == "tag:yaml.org,2002:int" and len(node.value) > MAX_DIGITS:
        raise yaml.YAMLError(f"a number has {len(node.value)} digits")
    if id(node) not in sizes:
        sizes[id(node)] = 1
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        pairs = children if isinstance(node, yaml.MappingNode) else [(child,) for child in children]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for pair in pairs for child in pair)
    return sizes[id(node)]
