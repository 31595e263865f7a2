"""Kubernetes manifests as plain data: read and write YAML, and take fields one by one so that none is dropped silently.

Pure: texts and maps in, texts and maps out.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from trainer.errors import ConfigurationError
from trainer.text import truncate
from trainer.text.yaml_text import load_all

Map = dict[str, Any]

WRITTEN_BY_THE_CLUSTER = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
"""Fields of metadata that the cluster adds and `kubectl get` shows."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation that `kubectl apply` adds."""

_DEFAULTS = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
"""Fields with the default value of Kubernetes."""


@dataclass
class Fields:
    """A map whose fields are taken one by one; `close` notes the fields that were not taken.

    The typed methods raise a ConfigurationError if a field has another type.
    """

    path: str
    content: Map
    notes: list[str]
    taken: set[str] = field(default_factory=set)

    def at(self, key: str) -> str:
        """The path of a field."""
        return f"{self.path}.{key}" if self.path else key

    def note(self, key: str, text: str) -> None:
        """Add a note about a field."""
        self.notes.append(" ".join(f"{self.at(key)}: {text}".split()))

    def take(self, key: str) -> Any:
        """The value of a field; None if it is absent."""
        self.taken.add(key)
        return self.content.get(key)

    def inner(self, key: str) -> "Fields":
        """A field that is a map; empty if it is absent."""
        return fields(self.at(key), self.take(key), self.notes)

    def items(self, key: str, *texts: str) -> list[Map]:
        """A field that is a list of maps, in which the named fields are strings; empty if it is absent."""
        value = self.take(key) or []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ConfigurationError(f"{self.at(key)}: a list of maps was expected, not {shorten(value)}.")
        for index, item in enumerate(value):
            part = Fields(f"{self.at(key)}[{index}]", item, self.notes)
            for text in texts:
                part.text(text)
        return value

    def text(self, key: str) -> str:
        """A field that is a string; empty if it is absent."""
        value = self.take(key)
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"{self.at(key)}: text was expected, not {shorten(value)}.")
        return value or ""

    def words(self, key: str) -> list[str]:
        """A field that is a list of strings; empty if it is absent."""
        value = self.take(key) or []
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise ConfigurationError(f"{self.at(key)}: a list of texts was expected, not {shorten(value)}.")
        return value

    def whole(self, key: str) -> int | None:
        """A field that is a whole number of at least 0; None if it is absent."""
        value = self.take(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ConfigurationError(f"{self.at(key)}: a whole number was expected, not {shorten(value)}.")
        return value

    def one_of(self, key: str, choices: Iterable[str]) -> str:
        """A field that is one of these strings; empty if it is absent."""
        value = self.text(key)
        if value and value not in choices:
            raise ConfigurationError(f"{self.at(key)}: one of {', '.join(choices)} was expected, not {value!r}.")
        return value

    def close(self, reasons: Mapping[str, str], otherwise: str) -> None:
        """Note why each field that was not taken is not carried over, except empty fields and defaults."""
        for key, value in self.content.items():
            if key not in self.taken and not is_empty(value) and _DEFAULTS.get(key) != value:
                self.note(key, reasons.get(key, otherwise))


def fields(path: str, value: Any, notes: list[str]) -> Fields:
    """The fields of a map at this path; empty if it is absent.

    Raises:
        ConfigurationError: the value is not a map.
    """
    if value is not None and not isinstance(value, dict):
        raise ConfigurationError(f"{path}: a map was expected, not {shorten(value)}.")
    return Fields(path, value or {}, notes)


def is_empty(value: Any) -> bool:
    """Whether a value is empty or false."""
    return value is None or value is False or value in ("", [], {})


def shorten(value: Any) -> str:
    """A value as JSON, shortened for an error message."""
    return truncate(json.dumps(value), 60)


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: 2024-01-31 and 12:30 are strings."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is yaml.ScalarNode and (
            tag.endswith(":timestamp") or (tag.endswith((":int", ":float")) and ":" in value)
        ):
            return "tag:yaml.org,2002:str"
        return tag


def load(text: str, origin: str) -> list[Any]:
    """The documents of a manifest, YAML or JSON, as Kubernetes reads them, without empty documents.

    Args:
        text: The manifest.
        origin: The manifest's name in errors, such as the file's name.

    Raises:
        ConfigurationError: the text is not YAML, or JSON cannot represent it.
    """
    try:
        documents = load_all(text, _Loader)
        # Kubernetes converts YAML to JSON: keys are strings, and no value refers to itself.
        return [json.loads(json.dumps(document)) for document in documents if document is not None]
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{origin} is not YAML that Kubernetes reads: {' '.join(str(error).split())}."
        ) from None
