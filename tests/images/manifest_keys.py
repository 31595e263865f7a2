"""Runs inside a model's image: prints each key of an InferenceService that KServe's or Kubernetes' types do not have.

The manifest is standard input, in JSON.
"""

import json
import re
import sys
from typing import Any

import kserve.models
import kubernetes.client


def check(value: Any, kind: str, path: str) -> None:
    """Print the unknown keys of a value, which is a list of objects of this kind, or one, or something else."""
    if isinstance(value, list):
        for each in value:
            check(each, kind, path)
    model = getattr(kserve.models, kind, None) or getattr(kubernetes.client, kind, None)
    if model is None or not isinstance(value, dict):
        return
    attributes = {key: attribute for attribute, key in model.attribute_map.items()}
    for key, each in value.items():
        if key in attributes:
            check(each, re.sub(r"^[Ll]ist\[(.*)\]$", r"\1", model.openapi_types[attributes[key]]), f"{path}.{key}")
        else:
            print(f"{path}.{key}")


if __name__ == "__main__":
    check(json.load(sys.stdin), "V1beta1InferenceService", "")
