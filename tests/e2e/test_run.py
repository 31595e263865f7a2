"""Runs of the packaged trainer on digits, from `helm install` to `helm uninstall`."""

import json
import re
import time

import pytest
import yaml

from tests.e2e.releases import ROOT, UNSUPERVISED, Release, exit_code, is_ready, wait

NOT_KEPT = {"trainingDirectory": {"keep": False}}
DONE = re.compile(r"done: (\d+) steps in .* test accuracy (0\.\d+)")


def test_an_asynchronous_run_without_a_supervisor_trains_ends_and_upgrades(release: Release) -> None:
    """1 ps and 2 workers; then two upgrades; then an uninstall that removes all objects, as the claim is not kept."""
    began = time.time()
    release.install(UNSUPERVISED | NOT_KEPT, "--wait", "--timeout=3m")
    print(f"install to all ready: {time.time() - began:.1f} s")

    result = release.wait_for_result(2000)
    release.wait_until_parked()
    assert result["test_accuracy"] > 0.95
    assert (result["mode"], result["workers"], result["ps"]) == ("asynchronous", 2, 1)
    done = DONE.search(release.log("mnist-worker-0"))
    assert done, release.log("mnist-worker-0")
    assert int(done[1]) == result["global_step"]
    assert float(done[2]) == result["test_accuracy"]

    first_step = re.search(r"^(\d\d):(\d\d):(\d\d) worker 0: at step 0 ", release.log("mnist-worker-0"), re.MULTILINE)
    assert first_step, "worker 0 does not begin at step 0"
    at = time.gmtime(began)
    seconds = [int(part) for part in first_step.groups()]
    passed = (seconds[0] - at.tm_hour) * 3600 + (seconds[1] - at.tm_min) * 60 + seconds[2] - at.tm_sec
    print(f"install to the first training step: {passed % 86400} s")

    restarts = {name: pod["status"]["containerStatuses"][0]["restartCount"] for name, pod in release.tasks().items()}
    assert restarts == {"mnist-ps-0": 1, "mnist-worker-0": 1, "mnist-worker-1": 1}, (
        "each container ended once and was then parked"
    )
    assert "SUCCEEDED" in release.helm("test", "mnist", "--timeout=3m").upper()

    # More steps and one more worker: training continues from the checkpoint.
    values = UNSUPERVISED | NOT_KEPT | {"worker": {"replicas": 3}, "train": {"train_steps": 2500}}
    release.upgrade(values, "--wait", "--timeout=3m")
    result = release.wait_for_result(2500)
    release.wait_until_parked()
    assert result["workers"] == 3
    assert "restored /training/model.ckpt-" in release.log("mnist-worker-0")
    assert set(release.tasks()) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1", "mnist-worker-2"}

    # A change of resources replaces the pods, but does not start the run again.
    limits = {"common": {"resources": {"limits": {"memory": "2Gi"}}}}
    release.upgrade(values | limits, "--wait", "--timeout=3m")
    wait(lambda: all(memory_limits(release)), 60, release.describe)
    release.wait_until_parked()
    assert release.result() == result

    # A new release must not adopt a claim that goes.
    patch = ["patch", "pvc", "mnist-training", "--type=merge"]
    release.kubectl(*patch, '--patch={"metadata":{"finalizers":["example.com/hold"]}}')
    release.helm("uninstall", "mnist")
    with pytest.raises(AssertionError, match="the claim mnist-training of an earlier release is still being deleted"):
        release.install(UNSUPERVISED)
    release.kubectl(*patch, '--patch={"metadata":{"finalizers":null}}')
    kinds = "all,configmaps,persistentvolumeclaims,serviceaccounts,networkpolicies,poddisruptionbudgets,secrets"
    owned = ["get", kinds, "--selector=app.kubernetes.io/instance=mnist", "--output=name"]
    wait(lambda: not release.kubectl(*owned), 60, lambda: release.kubectl(*owned))


def memory_limits(release: Release) -> list[bool]:
    """Return for each task's pod whether it has the memory limit of the upgrade."""
    containers = [pod["spec"]["containers"][0] for pod in release.tasks().values()]
    return [container["resources"].get("limits", {}).get("memory") == "2Gi" for container in containers]


def test_a_synchronous_run_with_two_ps_and_three_workers(release: Release) -> None:
    """It has the documented DNS names, serves metrics, and keeps its claim after an uninstall."""
    train = {"train_steps": 8000, "sync_replicas": True, "batch_size": 50}
    values = {
        "ps": {"replicas": 2},
        "worker": {"replicas": 3},
        "train": train,
        "trainingDirectory": {"size": "1Gi"},
    }
    release.install(values)
    metrics = f"/api/v1/namespaces/{release.namespace}/pods/mnist-worker-0:9100/proxy/metrics"
    step = re.compile(r"^trainer_global_step ([0-9.e+]+)$", re.MULTILINE)

    def scraped_step() -> float:
        found = step.search(release.try_kubectl("get", "--raw", metrics).stdout)
        return float(found[1]) if found else 0.0

    # Tasks are ready when their servers listen, so that most of the run is left for what follows.
    wait(lambda: [is_ready(pod) for pod in release.tasks().values()] == 5 * [True], 120, release.describe)
    wait(lambda: scraped_step() > 0, 120, release.describe)

    addresses = {}
    for name, pod in release.tasks().items():
        host = f"{name}.{name.rpartition('-')[0]}"
        for name_in_dns in (host, f"{host}.{release.namespace}.svc.cluster.local"):
            addresses[name_in_dns] = [pod["status"]["podIP"]]
    look_up = (
        "import json, socket, sys\n"
        "found = {name: sorted({each[4][0] for each in socket.getaddrinfo(name, 2222)}) for name in sys.argv[1:]}\n"
        "print(json.dumps(found))"
    )  # all in one call: the run may end meanwhile
    found = release.kubectl("exec", "mnist-worker-1", "--", "python", "-c", look_up, *addresses)
    assert json.loads(found) == addresses

    release.finish()
    result = release.wait_for_result(8000)
    assert result["global_step"] == 8000
    assert result["test_accuracy"] > 0.95
    assert (result["mode"], result["workers"], result["ps"]) == ("synchronous", 3, 2)

    release.helm("uninstall", "mnist", "--wait")
    assert [claim["metadata"]["name"] for claim in release.get("pvc")["items"]] == ["mnist-training"]
    # A release with the same name adopts the claim and detects that the run is done.
    assert "The claim mnist-training of an earlier release is used again" in release.install(values)
    release.finish()
    assert release.wait_for_result(8000) == result
    log = release.saved_log("worker-0")  # the parameter servers may take too long to start for a run that was done
    assert "restored /training/model.ckpt-8000" in log or "the run was done before" in log


@pytest.mark.long
def test_a_run_with_a_chief_and_an_evaluator_gets_another_number_of_steps(release: Release) -> None:
    values = {"chief": {"replicas": 1}, "worker": {"replicas": 1}, "evaluator": {"replicas": 1}}
    train = {"train_steps": 1_000_000, "save_seconds": 3}
    release.install(values | {"train": train})
    wait(lambda: "worker 0: at step" in release.log("mnist-worker-0"), 120, release.describe)
    wait(lambda: curve_names(release) >= {"train"}, 60, release.describe)
    assert "SUCCEEDED" in release.helm("test", "mnist", "--timeout=3m").upper(), (
        "every task is reachable during the run"
    )

    release.upgrade(values | {"train": train | {"train_steps": 1000}}, "--wait", "--timeout=3m")
    release.finish()
    result = release.wait_for_result(1000)
    assert result["workers"] == 2, "the chief trains too"
    assert curve_names(release) >= {"train", "test"}


def curve_names(release: Release) -> set[str]:
    """The files and folders of the training directory; TensorBoard shows `train` and `test` as runs."""
    listed = release.try_kubectl("exec", "deployment/mnist-tensorboard", "--", "ls", "/training")
    return set(listed.stdout.split())


def test_a_lost_parameter_server_restores_its_part_of_the_tables(release: Release) -> None:
    """With the values and the model in examples/."""
    model = ROOT / "examples" / "models" / "dlrm.py"
    release.kubectl("create", "configmap", "my-model", f"--from-file=mine.py={model}")
    values = yaml.safe_load((ROOT / "examples" / "values-tables.yaml").read_text())
    values["train"] |= {"train_steps": 3000, "save_seconds": 2}
    release.install(values)
    wait(lambda: "checkpoint" in curve_names(release), 180, release.describe)
    release.kubectl("delete", "pod", "mnist-ps-1")
    assert release.wait_for_result(3000)["test_auc"] > 0.8
    restored = [line for line in release.saved_log("worker-0").splitlines() if "lost" in line or "restored" in line]
    assert "the tables on ps 0 stay as they are" in "\n".join(restored)


@pytest.mark.parametrize(
    ("policy", "code", "parked"),
    [
        ("ExitCode", 3, True),
        ("ExitCode", 137, False),
        pytest.param("OnFailure", 3, False, marks=pytest.mark.long),
        pytest.param("Never", 137, True, marks=pytest.mark.long),
    ],
)
def test_the_exit_code_of_a_custom_program_decides_whether_it_restarts(
    release: Release, policy: str, code: int, parked: bool
) -> None:
    program = f'echo "TF_CONFIG is $TF_CONFIG"; echo "start $TASK_RESTARTS"; exit {code}'
    image = {"registry": "docker.io", "repository": "library/debian", "tag": "bookworm-slim"}
    release.install(
        {
            "ps": {"replicas": 0},
            "worker": {"replicas": 1, "image": image, "command": ["sh", "-c", program], "restartPolicy": policy},
            "tensorboard": {"enabled": False},
            **UNSUPERVISED,
        }
    )
    wait(lambda: exit_code(release.tasks().get("mnist-worker-0", {"status": {}})) is not None, 90, release.describe)
    expected = "task: ended" if parked else "start 1"
    wait(lambda: expected in release.log("mnist-worker-0"), 60, release.describe)
    pod = release.tasks()["mnist-worker-0"]
    assert exit_code(pod) == code
    assert not is_ready(pod), "a failed task must not be ready"
    printed = re.search("TF_CONFIG is (.*)", release.log("mnist-worker-0"))
    assert printed
    assert json.loads(printed[1]) == {
        "cluster": {"worker": ["mnist-worker-0.mnist-worker:2222"]},
        "task": {"type": "worker", "index": 0},
        "environment": "cloud",
    }
