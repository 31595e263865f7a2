"""Read a manifest and find the TFJob in it.

Pure: text in, maps out.
"""

import re
from typing import Any

from trainer.errors import ConfigurationError
from trainer.tfjob.manifest import Map, load, shorten

API_VERSION = "kubeflow.org/v1"
ALIKE = re.compile(r"kubeflow\.org/v1(alpha2|beta\d+)")
"""Former versions whose spec is that of v1 but for a few fields."""


def parse_manifest(text: str, origin: str) -> tuple[Map, list[Map]]:
    """The TFJob in a manifest, YAML or JSON, and the manifest's other objects.

    Args:
        text: The manifest.
        origin: The manifest's name in errors, such as the file's name.

    Raises:
        ConfigurationError: the text is not YAML, or has no TFJob of kubeflow.org/v1, or several.
    """
    found = [item for document in load(text, origin) for item in _items(document)]
    kinds = [item.get("kind") if isinstance(item, dict) else None for item in found]
    if not found:
        raise ConfigurationError(f"{origin} holds nothing, and one TFJob was expected.")
    jobs = [item for item, kind in zip(found, kinds, strict=True) if kind == "TFJob"]
    others = [item for item, kind in zip(found, kinds, strict=True) if kind != "TFJob"]
    if not jobs:
        raise ConfigurationError(
            f"{origin}: kind: TFJob was expected, not {' or '.join(shorten(kind) for kind in kinds)}."
        )
    if len(jobs) > 1:
        names = " and ".join(shorten(named(item).removeprefix("TFJob ")) for item in jobs)
        raise ConfigurationError(f"{origin} holds the TFJobs {names}, and one was expected; use a file for each.")
    for item in others:
        if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("apiVersion", "kind")):
            raise ConfigurationError(f"{origin}: an object with apiVersion and kind was expected, not {shorten(item)}.")
    _check_version(jobs[0].get("apiVersion"), origin)
    return dict(jobs[0]), others


def _items(document: Any) -> list[Any]:
    """The objects of a document, which is a list if `kubectl get` printed several, or the API server a TFJobList."""
    if not isinstance(document, dict) or document.get("kind") not in ("List", "TFJobList"):
        return [document]
    items = document.get("items")
    if not isinstance(items, list):
        return []
    if document["kind"] == "List":
        return items
    typed = {"apiVersion": document.get("apiVersion"), "kind": "TFJob"}  # the items of a typed list may lack both
    return [{**typed, **item} if isinstance(item, dict) else item for item in items]


def _check_version(version: Any, origin: str) -> None:
    if version == API_VERSION:
        return
    remedy = f"write the TFJob anew for {API_VERSION}, whose roles are in spec.tfReplicaSpecs."
    if isinstance(version, str) and ALIKE.fullmatch(version):
        remedy = f"set apiVersion: {API_VERSION}, whose spec is the same but for a few fields, which a note then names."
    raise ConfigurationError(f"{origin}: apiVersion: {API_VERSION} was expected, not {shorten(version)}; {remedy}")


def named(item: Map) -> str:
    """The kind and the name of an object."""
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return " ".join(f"{item.get('kind')} {name or ''}".split())
