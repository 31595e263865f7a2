"""`data.watch`: the Deployment that upgrades its own release for each new version of the data."""

from typing import Any

import pytest

from tests.chart.chart import Manifests, render
from tests.chart.test_stages import run_of

WATCH: dict[str, Any] = {
    "train.dataset": "lance",
    "data.enabled": True,
    "data.uri": "/data/digits.lance",
    "data.watch.enabled": True,
}


def arguments(manifests: Manifests) -> dict[str, str]:
    """The arguments of files/watch.sh, by name."""
    container = manifests.get("Deployment/data-watch spec template spec containers data-watch")
    names = ("release", "namespace", "base", "key", "revision")
    return dict(zip(names, container["command"][-len(names) :], strict=True))


def upgraded(values: dict[str, Any], version: int) -> Manifests:
    """The release after the watch has found a version, as files/watch.sh upgrades it."""
    found = arguments(render(values))
    base = f"{found['base']}/" if found["base"] else ""
    kept = {"data.watch.state.base": found["base"], "data.watch.state.revision": found["revision"]}
    return render({**values, "train.data_version": str(version), found["key"]: f"{base}v{version}", **kept})


def test_nothing_watches_by_default() -> None:
    manifests = render()
    assert not [item for item in manifests if "watch" in item["metadata"]["name"]]
    assert "waitsForData" not in run_of(manifests)


def test_the_run_waits_for_the_first_version_and_then_trains_on_it() -> None:
    assert run_of(render(WATCH))["waitsForData"] is True
    manifests = upgraded(WATCH, 3)
    assert "waitsForData" not in run_of(manifests)
    assert manifests.get("ConfigMap/config data trainer.yaml data_version") == "3"
    mounts = manifests.get("StatefulSet/worker spec template spec containers worker volumeMounts training")
    assert mounts["subPath"] == "v3"


@pytest.mark.parametrize(
    ("given", "key", "base"),
    [
        ({}, "trainingDirectory.subPath", ""),
        ({"trainingDirectory.subPath": "team/digits"}, "trainingDirectory.subPath", "team/digits"),
        ({"trainingDirectory.uri": "s3://bucket/digits/"}, "trainingDirectory.uri", "s3://bucket/digits"),
    ],
)
def test_each_version_has_a_folder_of_its_own_beside_the_others(given: dict[str, Any], key: str, base: str) -> None:
    first = upgraded({**WATCH, **given}, 3)
    assert (arguments(first)["key"], arguments(first)["base"]) == (key, base)
    assert run_of(first)["hash"] != run_of(upgraded({**WATCH, **given}, 4))["hash"]


def test_its_own_upgrades_leave_the_pod_of_the_watch_alone() -> None:
    waiting, first, second = (
        manifests["Deployment/data-watch"] for manifests in (render(WATCH), upgraded(WATCH, 3), upgraded(WATCH, 4))
    )
    assert waiting == first == second


def test_an_upgrade_by_hand_that_names_no_version_starts_the_watch_anew() -> None:
    kept = {**WATCH, "data.watch.state.base": "team", "data.watch.state.revision": "7"}
    assert arguments(render({**kept, "train.data_version": "3"}))["revision"] == "7"
    found = arguments(render(kept))
    assert (found["revision"], found["base"]) == ("1", ""), (
        "the revision of the upgrade itself, and the place in its values"
    )


def test_the_variables_of_the_tasks_do_not_choose_what_is_upgraded() -> None:
    values = {**WATCH, "common.env": [{"name": "release", "value": "other"}, {"name": "HOME", "value": "/other"}]}
    assert arguments(render(values))["release"] == "mnist"


def test_a_suspended_run_is_not_upgraded() -> None:
    assert render({**WATCH, "run.suspend": True})["Deployment/data-watch"]["spec"]["replicas"] == 0
    assert render(WATCH)["Deployment/data-watch"]["spec"]["replicas"] == 1


def test_it_reads_the_data_with_the_credentials_of_the_tasks() -> None:
    values = {
        **WATCH,
        "common.envFrom": [{"secretRef": {"name": "bucket"}}],
        "common.env": [{"name": "A", "value": "b"}],
    }
    pod = render(values).pods()["data-watch"]
    (container,) = pod["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert {"name": "A", "value": "b"} in container["env"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "data"]
    assert mount["readOnly"] is True


def test_it_has_a_token_and_reaches_the_api_server() -> None:
    manifests = render({**WATCH, "networkPolicy.egress.enabled": True})
    assert manifests.pods()["data-watch"]["spec"]["automountServiceAccountToken"] is True
    (expression,) = manifests.get("NetworkPolicy/egress spec podSelector matchExpressions")
    assert "data-watch" in expression["values"]
    assert manifests["RoleBinding/data-watch"]["roleRef"]["name"] == "admin"
