"""The values files in ci/: `ct lint` and tests/e2e use all of them, `ct install` those that run on any cluster."""

from typing import Any

import pytest
import yaml

from tests.chart.chart import CHART, Manifests, parse, template

CASES = {path.stem.removesuffix("-values"): path.read_text() for path in sorted((CHART / "ci").glob("*-values.yaml"))}
INSTALLABLE = [case for case, text in CASES.items() if "\n# not installable: " not in text]


def test_some_cases_are_installed_and_some_are_not() -> None:
    assert 4 <= len(INSTALLABLE) < len(CASES)


@pytest.mark.parametrize("case", CASES)
def test_its_first_line_is_its_title(case: str) -> None:
    first, second, *_ = CASES[case].splitlines()
    assert first.startswith("# ")
    assert not second.startswith("#") or second.startswith("# not installable: ")


@pytest.mark.parametrize("case", INSTALLABLE)
def test_it_is_small_enough_for_one_node(case: str) -> None:
    text = CASES[case]
    values: dict[str, Any] = yaml.safe_load(text)
    has_own_image = "image" in values["common"]
    assert has_own_image or values["train"]["train_steps"] == 200
    done = template(text)
    assert done.returncode == 0, done.stderr
    manifests = Manifests("mnist", [item for item in parse(done.stdout) if item])
    cpus = 0
    for component, pod in manifests.pods().items():
        (container,) = pod["spec"]["containers"]
        cpus += (manifests.replicas(component) or 1) * int(container["resources"]["requests"]["cpu"].removesuffix("m"))
    assert cpus <= 1000, "half of a node with two CPUs is for the cluster itself"
    for claim in manifests.of("PersistentVolumeClaim"):
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
