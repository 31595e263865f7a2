"""Runs in one namespace do not collide: all names differ, and each selector matches the intended pods only."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, Manifests, Object, render
from trainer.cluster.spec import ROLES

EVERYTHING = {
    **ALL_ROLES,
    "data.enabled": True,
    "metrics.podMonitor.enabled": True,
    "metrics.prometheusRule.enabled": True,
    "metrics.dashboard.enabled": True,
    "metrics.from": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
    "networkPolicy.egress.enabled": True,
    "tensorboard.ingress.enabled": True,
    "tensorboard.httpRoute.enabled": True,
    "tensorboard.httpRoute.parentRefs": [{"name": "gateway"}],
    "mlflow.trackingUri": "http://mlflow:5000",
}
PARTS = ("worker", "ps", "tensorboard", "data", "2", "worker-0")
RELEASES = ("mnist", *(f"mnist-{part}" for part in PARTS))
OTHERS = {
    ("NetworkPolicy", "tasks", "app=prometheus"),
    ("NetworkPolicy", "tensorboard", ""),
}
"""Selectors from values, for pods outside the run: those of metrics and TensorBoard."""


def selectors(place: Any) -> Iterator[dict[str, Any]]:
    """Every label selector in an object."""
    if isinstance(place, list):
        for item in place:
            yield from selectors(item)
    elif isinstance(place, dict):
        for key, value in place.items():
            if key in ("podSelector", "labelSelector", "selector"):
                yield value if "matchLabels" in value or not value else {"matchLabels": value}
            else:
                yield from selectors(value)


def selected(selector: dict[str, Any], pods: dict[tuple[str, str], Object]) -> set[tuple[str, str]]:
    """The pods, by release and component, whose labels a selector matches."""
    wanted = [(key, "In", [value]) for key, value in selector.get("matchLabels", {}).items()]
    wanted += [(each["key"], each["operator"], each["values"]) for each in selector.get("matchExpressions", [])]
    assert {operator for _, operator, _ in wanted} <= {"In", "NotIn"}
    return {
        name
        for name, pod in pods.items()
        if all((pod["metadata"]["labels"].get(key) in values) == (how == "In") for key, how, values in wanted)
    }


@pytest.fixture(scope="module")
def releases() -> dict[str, Manifests]:
    return {release: render(EVERYTHING, release=release) for release in RELEASES}


@pytest.fixture(scope="module")
def pods(releases: dict[str, Manifests]) -> dict[tuple[str, str], Object]:
    """The pods of all releases, by release and component."""
    return {
        (release, component): pod
        for release, manifests in releases.items()
        for component, pod in manifests.pods().items()
    }


def test_no_two_objects_share_a_name(releases: dict[str, Manifests]) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for manifests in releases.values() for item in manifests]
    names += [  # pods of the StatefulSets
        ("Pod", f"{item['metadata']['name']}-{index}")
        for manifests in releases.values()
        for item in manifests.of("StatefulSet")
        for index in range(manifests.replicas(item["metadata"]["name"].removeprefix(f"{manifests.release}-")))
    ]
    assert len(names) == len(set(names))


def test_each_selector_matches_the_intended_pods_only(
    releases: dict[str, Manifests], pods: dict[tuple[str, str], Object]
) -> None:
    every: set[str] = {*ROLES, "tensorboard", "stage", "test", "supervisor"}
    mounting = {"chief", "evaluator", "tensorboard", "stage"}
    intended: dict[tuple[str, str], list[set[str]]] = {
        ("NetworkPolicy", "tasks"): [
            {*ROLES, "stage", "supervisor"},
            {*ROLES, "test"},
        ],  # the pods it applies to; the pods it admits
        ("NetworkPolicy", "egress"): [every - {"supervisor"}, every],
        ("NetworkPolicy", "supervisor-egress"): [{"supervisor"}],
        ("NetworkPolicy", "tensorboard"): [{"tensorboard"}, {"test"}],
        ("PodMonitor", "tasks"): [every],
        ("Deployment", "tensorboard"): [{"tensorboard"}, mounting],  # its own pods; the pods whose node it shares
        ("Service", "tensorboard"): [{"tensorboard"}],
        ("Job", "stage-publish"): [mounting],
        ("StatefulSet", "chief"): [{"chief"}, mounting],
        ("StatefulSet", "evaluator"): [{"evaluator"}, {"chief"}],
    }
    intended |= {("StatefulSet", role): [{role}] for role in ("worker", "ps")}
    intended |= {(kind, role): [{role}] for kind in ("Service", "PodDisruptionBudget") for role in ROLES}
    for release, manifests in releases.items():
        found: dict[tuple[str, str], list[set[tuple[str, str]]]] = {}
        for item in manifests:
            word = re.sub("-[0-9a-f]{8}$", "", item["metadata"]["name"].removeprefix(f"{release}-"))
            key = (item["kind"], word)
            for selector in selectors(item.get("spec", {})):
                labels = ",".join("=".join(pair) for pair in selector.get("matchLabels", {}).items())
                if (*key, labels) not in OTHERS:
                    found.setdefault(key, []).append(selected(selector, pods))
        assert found == {
            key: [{(release, component) for component in components} for components in expected]
            for key, expected in intended.items()
        }


@pytest.mark.parametrize("release", ["y", "true", "null", "e3"])
def test_a_release_name_that_looks_like_another_yaml_type_stays_text(release: str) -> None:
    for item in render(EVERYTHING, release=release):
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == release


def test_custom_labels_do_not_override_the_labels_of_selectors() -> None:
    labels = {"app.kubernetes.io/instance": "other", "app.kubernetes.io/component": "other", "team": "a"}
    manifests = render({f"{pods}.labels": labels for pods in ("common", "tensorboard", "supervisor")})
    for component, pod in manifests.pods().items():
        assert pod["metadata"]["labels"]["app.kubernetes.io/instance"] == "mnist"
        assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
        assert pod["metadata"]["labels"]["team"] == "a"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "client.replicas": 1,
            "client.command": ["ask"],
            "mlflow.trackingUri": "",
        },
    ],
    ids=["MLflow", "a client"],
)
def test_every_object_and_pod_has_the_common_labels_and_annotations(more: dict[str, Any]) -> None:
    common = {"team": "{{ .Release.Name }}-team", "app.kubernetes.io/instance": "other", "release": "other"}
    values = {
        **EVERYTHING,
        "commonLabels": common,
        "commonAnnotations": common,
        "metrics.podMonitor.labels.release": "p",
    }
    values |= {"worker.annotations": {"team": "own"}, "tensorboard.ingress.annotations": {"team": "own"}}
    values |= more
    manifests = render(values)
    for item in [*manifests, *manifests.pods().values()]:
        metadata = item["metadata"]
        assert metadata["labels"]["team"] == "mnist-team"
        assert metadata["labels"]["app.kubernetes.io/instance"] == "mnist"
        own = item.get("kind") == "Ingress" or item is manifests.pods()["worker"]
        assert metadata["annotations"]["team"] == ("own" if own else "mnist-team")
    assert manifests.get("PodMonitor/tasks metadata labels release") == "p"
    assert manifests.get("PersistentVolumeClaim/data metadata annotations helm.sh/resource-policy") == "keep"


def test_every_object_has_the_namespace_and_the_labels_of_its_release() -> None:
    for item in render(EVERYTHING, namespace="ml"):
        assert item["metadata"]["namespace"] == "ml"
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == "mnist"
        assert item["metadata"]["labels"]["app.kubernetes.io/name"] == "distributed-tensorflow"
