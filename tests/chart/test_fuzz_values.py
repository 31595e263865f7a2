"""Any values that the schema allows are rendered to objects, or refused in a sentence that names a key."""

import re
from typing import Any

import hypothesis
import yaml
from hypothesis import given

from tests.chart.chart import parse, template
from tests.chart.values_mutations import mutated_values, rendered_examples
from tests.fuzzing import assert_sentence

BY_SCHEMA = "values don't meet the specifications of the schema"
REFUSAL = re.compile(r"Error: execution error at \(\S+\): (.*)")


@rendered_examples(60)
@given(mutated_values())
@hypothesis.example({"commonLabels": None, "commonAnnotations": None})
def test_changed_values(values: dict[str, Any]) -> None:
    done = template(yaml.safe_dump(values))
    if done.returncode and BY_SCHEMA not in done.stderr:
        found = REFUSAL.match(done.stderr)
        assert found, done.stderr
        assert_sentence(found[1])
    else:
        for item in parse(done.stdout):
            assert item is None or {"apiVersion", "kind", "metadata"} <= item.keys(), item
