"""What all pods have in common: additional fields of their spec, and templates."""

from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, render


def test_pod_spec_adds_fields_and_a_role_adds_to_those_of_common() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "{{ .Release.Name }}-gpu"}]
    pods = render(
        {
            **ALL_ROLES,
            "common.podSpec": {"hostIPC": True, "schedulingGates": [{"name": "queue"}]},
            "worker.podSpec": {"resourceClaims": claims, "hostIPC": False, "automountServiceAccountToken": True},
        }
    ).pods()
    worker, ps = pods["worker"]["spec"], pods["ps"]["spec"]
    assert worker["schedulingGates"] == ps["schedulingGates"] == [{"name": "queue"}]
    assert (worker["hostIPC"], ps["hostIPC"]) == (False, True)
    assert worker["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "mnist-gpu"}]
    assert (worker["automountServiceAccountToken"], ps["automountServiceAccountToken"]) == (True, False)
    assert "schedulingGates" not in pods["tensorboard"]["spec"]


def test_pod_spec_accepts_the_resources_of_the_pod() -> None:
    resources = {"limits": {"memory": "4Gi"}}
    assert (
        render({"common.podSpec.resources": resources}).get("StatefulSet/ps spec template spec resources") == resources
    )


@pytest.mark.parametrize("component", ["common", "tensorboard", "supervisor"])
def test_affinity_may_have_templates(component: str) -> None:
    selector = {"matchLabels": {"app.kubernetes.io/instance": "{{ .Release.Name }}"}}
    near = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    term = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": near}]}
    key = "common.affinity" if component == "common" else f"{component}.podSpec.affinity"
    pods = render({key: {"podAffinity": term}}, release="true").pods()
    affinity = pods["ps" if component == "common" else component]["spec"]["affinity"]
    (found,) = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert found["podAffinityTerm"]["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "true"


@pytest.mark.parametrize("component", ["tensorboard", "supervisor"])
def test_pod_spec_of_a_pod_of_the_chart_has_what_a_task_has_keys_for(component: str) -> None:
    given = {
        "imagePullSecrets": [{"name": "key"}],
        "nodeSelector": {"disk": "big"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"a": "b"}},
        "priorityClassName": "low",
        "hostUsers": False,
    }
    shared = {"trainingDirectory.accessModes": ["ReadWriteMany"], "common.imagePullSecrets": [{"name": "ours"}]}
    pod = render({**shared, f"{component}.podSpec": given}).pods()[component]["spec"]
    assert {key: pod.get(key) for key in given} == given
    other = render({**shared, f"{component}.podSpec": {"securityContext": {"runAsUser": 7}}}).pods()[component]["spec"]
    assert other["imagePullSecrets"] == [{"name": "ours"}]
    expected = {"runAsNonRoot": True, "runAsUser": 7, "runAsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    assert other["securityContext"].items() >= expected.items()


@pytest.mark.parametrize(
    ("common", "user"),
    [
        ({"common.podSecurityContext.runAsUser": 7}, 7),
        ({"common.podSecurityContext.runAsUser": None}, None),
        ({"common.podSecurityContext.runAsUser": 0}, 10001),
        ({"common.podSecurityContext": None}, 10001),
    ],
)
def test_the_pods_of_the_chart_have_the_user_of_the_tasks_unless_it_is_root(
    common: dict[str, Any], user: int | None
) -> None:
    pods = render(common).pods()
    for component in ("tensorboard", "supervisor", "test"):
        context = pods[component]["spec"]["securityContext"]
        assert (context["runAsNonRoot"], context.get("runAsUser")) == (True, user)


def test_topology_spread_constraints_may_have_templates() -> None:
    selector = {"matchLabels": {"app.kubernetes.io/instance": "{{ .Release.Name }}"}}
    (found,) = render({"common.topologySpreadConstraints": [{"labelSelector": selector}]}).get(
        "StatefulSet/ps spec template spec topologySpreadConstraints"
    )
    assert found["labelSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "mnist"}


@pytest.mark.parametrize("key", ["commonAnnotations", "tensorboard.annotations"])
def test_the_cluster_autoscaler_may_evict_tensorboard_unless_annotations_forbid_it(key: str) -> None:
    name = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    found = {role: pod["metadata"]["annotations"].get(name) for role, pod in render(ALL_ROLES).pods().items()}
    assert found == {**dict.fromkeys(found, None), "tensorboard": "true"}
    assert render({key: {name: "false"}}).pods()["tensorboard"]["metadata"]["annotations"][name] == "false"


def test_helm_deletes_the_test_pod_after_success_and_failure_and_prints_its_output() -> None:
    annotations = render().pods()["test"]["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "test"
    ends = {"hook-succeeded", "hook-failed"}
    assert set(annotations["helm.sh/hook-delete-policy"].split(",")) == {"before-hook-creation", *ends}
    assert set(annotations["helm.sh/hook-output-log-policy"].split(",")) == ends
