"""The notes that `helm install` prints: commands for the release and its namespace.

`helm install --dry-run` needs a cluster. Therefore a copy of the chart renders the notes as a manifest.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chart.chart import CHART, TOO_LARGE, Manifests, render

Notes = Callable[..., str]
AS_MANIFEST = """
apiVersion: v1
kind: Notes
metadata: {name: notes}
text: {{ tpl (.Files.Get "NOTES.txt") . | quote }}
"""


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    """Renders the notes of a release `trial` in the namespace `ml`."""
    chart = tmp_path_factory.mktemp("chart") / "distributed-tensorflow"
    shutil.copytree(CHART, chart)
    (chart / "templates/NOTES.txt").rename(chart / "NOTES.txt")
    (chart / "templates/notes.yaml").write_text(AS_MANIFEST)

    def render_notes(values: dict[str, Any]) -> str:
        (item,) = render(values, release="trial", namespace="ml", chart=Path(chart)).of("Notes")
        return str(item["text"])

    return render_notes


def commands(text: str) -> list[list[str]]:
    """The commands in the notes, without comments."""
    return [line.partition("#")[0].split() for line in text.splitlines() if re.match("  (kubectl|helm|until) ", line)]


def manifests(values: dict[str, Any]) -> Manifests:
    return render(values, release="trial", namespace="ml")


@pytest.mark.parametrize(("values", "fullname"), [({}, "trial"), ({"fullnameOverride": "m"}, "m")])
def test_the_commands_are_for_this_release(notes: Notes, values: dict[str, Any], fullname: str) -> None:
    (job,) = manifests(values).of("Job")
    name = f"job/{job['metadata']['name']}"
    logs, outcome, tensorboard, test = (" ".join(words) for words in commands(notes(values)))
    assert logs == f"until kubectl --namespace ml logs --follow {name}; do sleep 1; done"
    assert outcome.startswith("kubectl --namespace ml wait --for=jsonpath='{.status.conditions}'")
    assert f"{name} && kubectl --namespace ml get {name} " in outcome
    assert tensorboard == (
        f"kubectl --namespace ml rollout status deployment/{fullname}-tensorboard && "
        f"kubectl --namespace ml port-forward service/{fullname}-tensorboard 6006:80"
    )
    assert test == "helm --namespace ml test trial"


def test_they_describe_the_job_too_as_a_quota_leaves_no_pod(notes: Notes) -> None:
    command = "kubectl --namespace ml describe jobs,pods --selector app.kubernetes.io/instance=trial,"
    assert f"{command}app.kubernetes.io/component=supervisor" in notes({})
    (job,) = manifests({}).of("Job")
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] == "supervisor"


def test_the_notes_of_a_suspended_run_show_how_to_resume_it(notes: Notes) -> None:
    first, *_ = commands(notes({"run.suspend": True}))
    assert " ".join(first) == "helm --namespace ml upgrade trial CHART --reuse-values --set run.suspend=false"


@pytest.mark.parametrize(
    ("values", "leader"),
    [({}, "trial-worker-0"), ({"chief.replicas": 1}, "trial-chief-0"), ({"fullnameOverride": "m"}, "m-worker-0")],
    ids=["worker", "chief", "another fullname"],
)
def test_without_a_supervisor_the_commands_name_the_leader(notes: Notes, values: dict[str, Any], leader: str) -> None:
    values = {**values, "supervisor.enabled": False}
    fullname = leader.rsplit("-", 2)[0]
    logs, tensorboard, test = (" ".join(words) for words in commands(notes(values)))
    assert logs == f"kubectl --namespace ml logs --follow {leader}"
    assert tensorboard.endswith(f"port-forward service/{fullname}-tensorboard 6006:80")
    assert test == "helm --namespace ml test trial"
    names = {(item["kind"], item["metadata"]["name"]) for item in manifests(values)}
    assert ("StatefulSet", leader.rpartition("-")[0]) in names
    assert ("Service", f"{fullname}-tensorboard") in names


def test_without_a_supervisor_the_logs_command_of_a_client_names_its_job(notes: Notes) -> None:
    values = {"supervisor.enabled": False, "client.replicas": 1, "client.command": ["ask"]}
    (job,) = manifests(values).of("Job")
    assert commands(notes(values))[0][-1] == f"job/{job['metadata']['name']}"


def test_the_commands_have_the_port_and_path_of_tensorboard(notes: Notes) -> None:
    text = notes({"tensorboard.service.port": 8080, "tensorboard.pathPrefix": "/mnist"})
    assert "port-forward service/trial-tensorboard 6006:8080" in text
    assert "http://localhost:6006/mnist\n" in text


def test_without_tensorboard_there_is_no_port_forward(notes: Notes) -> None:
    assert "port-forward" not in notes({"tensorboard.enabled": False})


def test_values_without_their_switch_are_named(notes: Notes) -> None:
    published = {"mlflow.experiment": "digits", "mlflow.model": "mlp"}
    text = notes(published)
    assert "\nmlflow.model has no effect; set mlflow.trackingUri.\n" in text
    assert set(re.findall(r"(\S+) has no effect", text)) == published.keys()
    assert "has no effect" not in notes({**published, "mlflow.trackingUri": "http://mlflow:5000"}) + notes({})


def test_they_say_which_claims_uninstall_keeps_and_how_to_delete_them(notes: Notes) -> None:
    text = notes({"data.enabled": True})
    assert "`helm uninstall` keeps these claims and their files" in text
    assert text.rstrip().endswith("kubectl --namespace ml delete pvc trial-data trial-training")
    assert "deletes the claim" not in text


def test_they_warn_about_claims_that_uninstall_deletes(notes: Notes) -> None:
    both = {"data.enabled": True, "data.keep": False, "trainingDirectory.keep": False}
    warned = re.findall(r"deletes the claim (\S+) .* set (\S+)=true\.", notes(both))
    assert sorted(warned) == [("trial-data", "data.keep"), ("trial-training", "trainingDirectory.keep")]
    claims = manifests(both).of("PersistentVolumeClaim")
    assert {name for name, _ in warned} == {claim["metadata"]["name"] for claim in claims}


@pytest.mark.parametrize(
    "values",
    [
        {"trainingDirectory.existingClaim": "mine"},
        {"trainingDirectory.nfs.server": "nas", "trainingDirectory.nfs.path": "/exports"},
    ],
    ids=["existing", "NFS"],
)
def test_they_do_not_warn_about_volumes_that_remain(notes: Notes, values: dict[str, Any]) -> None:
    assert "helm uninstall" not in notes(values)


def test_they_list_the_number_of_tasks_of_each_role(notes: Notes) -> None:
    assert "Run trial: 2 worker(s), 1 ps. " in notes({})
    assert "Run trial: a chief, 3 worker(s), 2 ps. " in notes(
        {"chief.replicas": 1, "worker.replicas": 3, "ps.replicas": 2}
    )


def test_they_say_that_tasks_read_a_large_cluster_from_a_file(notes: Notes) -> None:
    assert "1300 worker(s), 1 ps (tasks read the cluster from a file: it is too long for TF_CONFIG). " in notes(
        TOO_LARGE
    )


def test_the_notes_say_that_the_nodes_need_the_images_without_a_registry(notes: Notes) -> None:
    assert "image.registry is empty" in notes({})
    assert "image.registry is empty" not in notes({"image.registry": "registry.example.com/team"})


INGRESS = {"tensorboard.ingress.enabled": True}
ROUTE = {"tensorboard.httpRoute.enabled": True, "tensorboard.httpRoute.parentRefs": [{"name": "public"}]}
HOSTS = ["a.example.com", "b.example.com"]


@pytest.mark.parametrize(
    ("values", "addresses"),
    [
        (INGRESS, "http://ADDRESS-OF-THE-INGRESS"),
        ({**INGRESS, "tensorboard.ingress.hosts": HOSTS}, "http://a.example.com http://b.example.com"),
        (
            {**INGRESS, "tensorboard.ingress.hosts": HOSTS[:1], "tensorboard.ingress.tls": [{"hosts": HOSTS}]},
            "https://a.example.com",
        ),
        (ROUTE, "ADDRESS-OF-THE-GATEWAY"),
        ({**ROUTE, "tensorboard.httpRoute.hostnames": HOSTS[:1]}, "a.example.com"),
    ],
)
def test_the_notes_name_the_published_addresses(notes: Notes, values: dict[str, Any], addresses: str) -> None:
    assert f"TensorBoard is published at {addresses}\n" in notes(values)
    with_path = " ".join(f"{address}/mnist" for address in addresses.split())
    assert f"TensorBoard is published at {with_path}\n" in notes({**values, "tensorboard.pathPrefix": "/mnist"})


def test_the_notes_name_no_address_of_a_service_without_one(notes: Notes) -> None:
    assert "published" not in notes({})
    assert "published" not in notes({**INGRESS, "tensorboard.enabled": False})


@pytest.mark.parametrize("published", [INGRESS, ROUTE])
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "tensorboardFrom admits only pods of the namespace ml."),
        ({"networkPolicy.tensorboardFrom": []}, "tensorboardFrom is empty, so the NetworkPolicy closes this address"),
        ({"networkPolicy.tensorboardFrom": [{"namespaceSelector": {}}]}, None),
        ({"networkPolicy.tensorboardFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, None),
        ({"networkPolicy.enabled": False, "networkPolicy.tensorboardFrom": []}, None),
    ],
)
def test_the_notes_say_if_the_network_policy_closes_the_address(
    notes: Notes, published: dict[str, Any], values: dict[str, Any], sentence: str | None
) -> None:
    text = notes({**published, **values})
    assert sentence in text if sentence else "networkPolicy" not in text


@pytest.mark.parametrize("values", [{"metrics.podMonitor.enabled": True}, {"metrics.prometheusRule.enabled": True}])
def test_the_notes_say_if_the_network_policy_keeps_prometheus_out(notes: Notes, values: dict[str, Any]) -> None:
    sentence = "networkPolicy.enabled keeps Prometheus from the metrics"
    assert sentence in notes(values)
    assert sentence not in notes({})
    assert sentence not in notes({**values, "metrics.from": [{"namespaceSelector": {}}]})
    assert sentence not in notes({**values, "networkPolicy.enabled": False})
