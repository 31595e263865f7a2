"""Which version of a Lance dataset is the newest, or has a tag: by the names of its files, without Lance.

A version N has a manifest, `_versions/N.manifest`, or by Lance's second scheme of names 2^64 - 1 - N in 20 digits. A
tag has the file `_refs/tags/TAG.json`. Source: https://lance.org/format/table/
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from trainer.errors import StoreError
from trainer.storage.object_store import ObjectStore, is_uri

_MANIFEST = re.compile(r"(?:.*/)?(\d+)\.manifest")
_LARGEST = 2**64 - 1
_INVERTED_DIGITS = 20
"""A number of so many digits counts down from the largest."""


def find(uri: str, tag: str) -> int | str:
    """The number of the version that has a tag, or without one (empty) of the newest; or why there is none.

    Args:
        uri: A path or a URI, such as s3://bucket/digits.lance.
        tag: The tag, or nothing.

    Raises:
        ConfigurationError: the address is wrong, or access is refused.
        StoreError: the store or the volume does not respond, or a file is not as Lance writes it.
    """
    store = ObjectStore(uri, "data.uri") if is_uri(uri) else None
    try:
        if tag:
            return _tagged(uri, tag, store)
        names = store.names("_versions") if store else (file.name for file in Path(uri, "_versions").iterdir())
        return _newest(names) or f"there is no dataset at {uri}"
    except FileNotFoundError:
        return f"there is no dataset at {uri}"
    except OSError as error:
        raise StoreError(f"{uri} cannot be read: {error.strerror}") from None


def _newest(names: Iterable[str]) -> int:
    matches = (_MANIFEST.fullmatch(name) for name in names)
    return max((_number(match[1]) for match in matches if match), default=0)


def _number(digits: str) -> int:
    return _LARGEST - int(digits) if len(digits) == _INVERTED_DIGITS else int(digits)


def _tagged(uri: str, tag: str, store: ObjectStore | None) -> int | str:
    name = f"_refs/tags/{tag}.json"
    try:
        content = store.read(name) if store else Path(uri, name).read_bytes()
    except FileNotFoundError:
        content = None
    if content is None:
        return f"{uri} has no tag {tag}"
    try:
        found = json.loads(content)
        number, branch = int(found["version"]), found.get("branch")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise StoreError(f"{uri}: {name} is not a tag of Lance") from None
    return f"the tag {tag} of {uri} is on the branch {branch}, and runs read the main one" if branch else number
