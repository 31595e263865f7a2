"""The other objects of a TFJob's manifest as the chart's `extraObjects`.

Pure.
"""

from collections.abc import Sequence
from typing import Any

from trainer.tfjob.manifest import LAST_APPLIED, WRITTEN_BY_THE_CLUSTER, Map
from trainer.tfjob.parse import named


def select(others: Sequence[Map]) -> tuple[list[Map], list[str]]:
    """The objects that the release can install, without what the cluster wrote into them, and notes on all objects.

    Helm installs no object that exists, and an object with a uid exists.
    """
    existing = [item for item in others if _has_uid(item)]
    new = [_without_cluster_fields(item) for item in others if not _has_uid(item)]
    notes = []
    if existing:
        notes.append(
            f"{_names(existing)}: not carried over; the cluster has it already, as its metadata.uid shows, and Helm "
            "installs no object that exists."
        )
    if new:
        notes.append(
            f"{_names(new)}: carried over to extraObjects; remove there what exists already; `helm uninstall` deletes "
            "them, claims too, unless they have the annotation helm.sh/resource-policy: keep."
        )
    if secrets := [item for item in new if item.get("kind") == "Secret"]:
        notes.append(
            f"{_names(secrets)}: its content is in the values, and Helm stores it in the release; to keep it out, "
            "create the Secret with kubectl and remove it from extraObjects."
        )
    return new, notes


def verbatim(part: Any) -> Any:
    """A part of an object, with "{{" escaped, because the chart renders extraObjects as templates."""
    if isinstance(part, list):
        return [verbatim(item) for item in part]
    if isinstance(part, dict):
        return {verbatim(key): verbatim(value) for key, value in part.items()}
    return part.replace("{{", "{{`{{`}}") if isinstance(part, str) else part


def _names(items: Sequence[Map]) -> str:
    return ", ".join(named(item) for item in items)


def _has_uid(item: Map) -> bool:
    metadata = item.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("uid"))


def _without_cluster_fields(item: Map) -> Map:
    kept = {key: value for key, value in item.items() if key != "status"}
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        return kept
    own = {key: value for key, value in metadata.items() if key not in WRITTEN_BY_THE_CLUSTER}
    if isinstance(own.get("annotations"), dict):
        own["annotations"] = {key: value for key, value in own["annotations"].items() if key != LAST_APPLIED}
    return {**kept, "metadata": {key: value for key, value in own.items() if value or key != "annotations"}}
