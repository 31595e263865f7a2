"""Any manifest is converted to values of the chart, or refused in a sentence."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.chart.test_convert_tfjob import EVERYTHING
from tests.fuzzing import examples, merge_bomb, mutations, nest, run_trainer, scalars, structures, yaml_bomb

pytestmark = pytest.mark.slow

EXAMPLE = (Path(__file__).parents[2] / "examples" / "tfjob.yaml").read_bytes()
MANIFESTS = [yaml.safe_load(EXAMPLE), yaml.safe_load(EVERYTHING)]
OTHERS = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, {"kind": "Secret"}, {}, None, []]
EMPTY = b"apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: a}\nspec:\n  "


def places(part: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a structure, the outer ones first."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [path, *(found for key, value in inner for found in places(value, (*path, key)))]


@st.composite
def manifests(draw: st.DrawFn) -> bytes:
    """A TFJob in which some values are others, or are at other places, beside other objects."""
    job = copy.deepcopy(draw(st.sampled_from(MANIFESTS)))
    for _ in range(draw(st.integers(1, 4))):
        found = places(job)[1:]
        *parents, last = draw(st.sampled_from(found))
        place = job
        for key in parents:
            place = place[key]
        if draw(st.booleans()) and isinstance(place, dict):
            del place[last]
        else:
            other = draw(st.sampled_from(found))
            value: Any = job
            for key in other:
                value = (
                    value[key]
                    if isinstance(value, (dict, list)) and (isinstance(value, list) or key in value)
                    else None
                )
            place[last] = copy.deepcopy(draw(structures | st.just(value)))
    objects = [job, *draw(st.lists(st.sampled_from(OTHERS) | structures, max_size=2))]
    if draw(st.booleans()):
        objects = [{"apiVersion": "v1", "kind": draw(st.sampled_from(["List", "TFJobList"])), "items": objects}]
    return bytes(yaml.safe_dump_all(objects).encode())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tfjob") / "job.yaml"


@examples(120)
@given(manifests())
def test_changed_tfjobs(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    code, printed = run_trainer("convert-tfjob", str(path))
    if code == 0:
        assert isinstance(yaml.safe_load(printed), dict)


@examples(60)
@given(
    mutations([EXAMPLE, EVERYTHING.encode()])
    | structures.map(lambda each: bytes(yaml.safe_dump(each).encode()))
    | st.binary(max_size=64)
    | st.sampled_from(
        [
            *(yaml_bomb(), merge_bomb(), EMPTY + b"a: 0x" + b"f" * 5000, EXAMPLE + b"\n---\n" + yaml_bomb()),
            *(EMPTY + bomb.replace(b"\n", b"\n  ") for bomb in (yaml_bomb(), merge_bomb())),
            *(EMPTY + b"tfReplicaSpecs: " + nest(300, opening, closing) for opening, closing in ("[]", ("{a: ", "}"))),
            *(nest(5000, "[", "]"), b"&a [*a]", EMPTY + b"a: &a {b: *a}", b"\xff", b"\0", b"a: !!python/none 1"),
        ]
    )
)
def test_damaged_manifests(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    run_trainer("convert-tfjob", str(path))


@examples(50)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20) | scalars.map(str))
def test_entrypoints(text: str) -> None:
    word = text.replace("\0", "0").encode(errors="replace").decode()
    for option in (word, f"worker={word}", f"{word}=a"):
        run_trainer("convert-tfjob", "--entrypoint", option, "/absent")
