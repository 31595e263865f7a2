"""Values files in which some values are others that the chart's schema allows."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
import yaml
from hypothesis import Phase
from hypothesis import strategies as st

from hack.chart.values import resolve
from tests.chart.chart import CHART, VALUES_FILES
from tests.fuzzing import examples

Schema = Mapping[str, Any]

SCHEMA: Schema = json.loads((CHART / "values.schema.json").read_text())
PASSED_ON = {"object", "objects", "resources"}
"""Definitions of values that go to the pods as they are, so that the API server alone knows what they may be."""


def _leaves(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """The path and the schema of each value that is not passed on and has no keys that the schema names."""
    if schema.get("$ref", "").rpartition("/")[2] in PASSED_ON:
        return
    schema = resolve(SCHEMA, schema)
    if "properties" not in schema:
        yield path, schema
    for key, part in schema.get("properties", {}).items():
        yield from _leaves(part, (*path, key))


LEAVES = [(path, schema) for path, schema in _leaves(SCHEMA) if path not in {("global",), ("extraObjects",)}]


TEXTS = st.sampled_from(
    ["", " ", "a", "A_b", "-", "1", "1Gi", "0.5", "true", "null", "a: b", "a\nb", "{{", "{{ .x }}", "é"]
)
CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"])
TEXTS |= st.text(CHARACTERS, max_size=8) | st.just("x" * 300)


def _texts(schema: Schema) -> st.SearchStrategy[str]:
    if "pattern" in schema:
        return st.from_regex(re.compile(str(schema["pattern"])), fullmatch=True, alphabet=CHARACTERS)
    return TEXTS.filter(lambda text: len(text) >= schema.get("minLength", 0))


def _allowed(schema: Schema) -> st.SearchStrategy[Any]:
    """Values that a part of the chart's schema allows; no more of JSON Schema than the chart uses."""
    if schema.get("$ref", "").endswith("/resources"):
        return st.just({})
    schema = resolve(SCHEMA, schema)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "type" not in schema:
        return st.one_of([_allowed(each) for each in schema["anyOf"]])
    least, most = schema.get("minimum", -(2**31)), schema.get("maximum", 2**53)
    by_type = {
        "null": st.none(),
        "boolean": st.booleans(),
        "integer": st.integers(least, most) | st.sampled_from([least, most, max(least, 1), max(least, 2)]),
        "number": st.integers(-2, 2**53) | st.floats(-1e6, 1e6),
        "string": _texts(schema),
    }
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "array" in types:
        by_type["array"] = st.lists(_allowed(schema["items"]), min_size=schema.get("minItems", 0), max_size=2)
    if "object" in types:
        names, required = schema.get("properties", {}), schema.get("required", [])
        known = {name: _allowed(part) for name, part in names.items()}
        by_type["object"] = st.fixed_dictionaries(
            {name: known[name] for name in required},
            optional={name: each for name, each in known.items() if name not in required},
        )
        if not names and "patternProperties" in schema:
            ((pattern, part),) = schema["patternProperties"].items()
            by_type["object"] = st.dictionaries(_texts({"pattern": pattern}), _allowed(part), max_size=2)
    return st.one_of([by_type[name] for name in types])


def rendered_examples(number: int) -> hypothesis.settings:
    """The settings of a test that renders the chart this often. It does not shrink a failure, which takes minutes."""
    return hypothesis.settings(examples(number), phases=[Phase.explicit, Phase.generate])


@st.composite
def mutated_values(draw: st.DrawFn) -> dict[str, Any]:
    """The values of a file in ci/ or examples/, some of which are replaced."""
    values: dict[str, Any] = copy.deepcopy(yaml.safe_load(draw(st.sampled_from(VALUES_FILES)).read_text()) or {})
    for (*parents, last), schema in draw(st.lists(st.sampled_from(LEAVES), min_size=1, max_size=3)):
        place = values
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        place[last] = draw(_allowed(schema))
    return values
