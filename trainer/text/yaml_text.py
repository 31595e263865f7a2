"""YAML of bounded size: aliases and merge keys let a few lines stand for billions of values.

Pure: text in, values out.
"""

import re
from collections.abc import Mapping
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


class _Dumper(yaml.SafeDumper):
    """YAML as a person writes it, in which every reader reads a string as a string."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Helm's YAML reader parses more strings as numbers and booleans than Python's: 1e3, 0o17, y.
    ambiguous = re.fullmatch(r"[-+]?(0[xob][\da-fA-F_]+|\.?\d[\d_]*\.?[\d_]*([eE][-+]?\d+)?)|[yYnN]", text)
    style = "|" if "\n" in text else "'" if ambiguous else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def dump(values: Mapping[str, Any]) -> str:
    """Values as YAML, in the order of their keys in the map."""
    return str(yaml.dump({**values}, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True))
