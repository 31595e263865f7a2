"""`trainer submit` and the commands that follow, list, fetch, stop, resume and delete a run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.chart.chart import EXAMPLES
from tests.e2e.releases import CHEAP, ROOT, Release, wait
from trainer import __version__ as version

MODEL = EXAMPLES / "models" / "cnn_batchnorm.py"


def trainer(release: Release, command: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of the trainer in the release's namespace; fails the test if it ends with another code."""
    done = subprocess.run([*start_of(release, command), *words], capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert done.returncode == code, f"{command} {words}: {done.stdout}{done.stderr}"
    return done


def start_of(release: Release, command: str) -> list[str]:
    return [sys.executable, "-m", "trainer", command, "--namespace", release.namespace]


@pytest.fixture
def cheap(tmp_path: Path) -> str:
    """The option with values of small requests."""
    file = tmp_path / "cheap.yaml"
    file.write_text(yaml.safe_dump(CHEAP))
    return f"--values={file}"


def left(release: Release) -> str:
    """What is left of the run in the namespace."""
    kinds = "all,configmaps,persistentvolumeclaims,secrets"
    return release.kubectl("get", kinds, f"--selector=app.kubernetes.io/instance={release.name}", "--output=name")


RECEIVER = """
import http.server
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print("posted", self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("", 8000), Receiver).serve_forever()
"""


def receive_notices(release: Release) -> None:
    """Start a pod that logs what is posted to it, and make the Secret with its address."""
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    image = f"distributed-tensorflow/supervisor:{version}"
    container = {
        "name": "receiver",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", RECEIVER],
        "securityContext": context,
    }
    security = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": security, "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "receiver"}, "spec": spec}
    release.kubectl("create", "--filename=-", text=json.dumps(pod))
    release.kubectl("wait", "--for=condition=Ready", "pod/receiver", "--timeout=120s")
    address = f"http://{release.get('pod', 'receiver')['status']['podIP']}:8000/"
    release.kubectl("create", "secret", "generic", "hook", f"--from-literal=url={address}")


def test_a_model_goes_to_the_cluster_and_comes_back(release: Release, cheap: str, tmp_path: Path) -> None:
    receive_notices(release)
    hook = tmp_path / "hook.yaml"
    hook.write_text("run: {notifySecret: hook}")
    words = ("--model", str(MODEL), "--workers", "1", "--train_steps", "60", "--name", release.name, cheap)
    done = trainer(release, "submit", *words, f"--values={hook}")
    assert f"loaded {MODEL} from these files" in done.stdout
    assert "the run succeeded: mnist-worker-0 ended with code 0; test accuracy" in done.stdout
    assert f"trainer fetch --namespace {release.namespace} mnist out" in done.stdout

    _, _, posted = release.kubectl("logs", "receiver").partition("posted ")
    notice = json.loads(posted.splitlines()[0])
    assert (notice["run"], notice["state"], notice["attempt"]) == ("mnist", "Succeeded", 1)
    assert notice["text"].startswith("mnist: the run succeeded: mnist-worker-0 ended with code 0; test accuracy 0.")

    (run,) = json.loads(trainer(release, "runs", "--json").stdout)
    assert (run["name"], run["state"]) == ("mnist", "Succeeded")
    assert run["progress"].startswith("step 60/60: ")
    assert "Succeeded" in trainer(release, "runs").stdout
    assert "the run succeeded" in trainer(release, "logs", "mnist").stdout
    assert "step 60/60" in trainer(release, "logs", "mnist", "--task", "worker-0").stdout, "its pod is gone"
    assert "#trainer" not in trainer(release, "logs", "mnist", "--task", "worker-0").stdout

    taken = trainer(release, "submit", "--name", "mnist", code=2)
    assert "there is a release mnist in the namespace already" in taken.stderr
    assert json.loads(trainer(release, "runs", "--json").stdout)[0]["state"] == "Succeeded"

    # Without TensorBoard no pod mounts the volume, so one is made that reads it.
    release.kubectl("scale", "deployment/mnist-tensorboard", "--replicas=0")
    selector = "--selector=app.kubernetes.io/component=tensorboard"
    release.kubectl("wait", "--for=delete", "pods", selector, "--timeout=120s")
    out = tmp_path / "out"
    assert "report: " in trainer(release, "fetch", "mnist", str(out)).stdout
    result = json.loads((out / "result.json").read_text())
    assert result["global_step"] == 60
    assert (out / "report.html").is_file()
    assert list(out.glob("export/*/saved_model.pb"))
    assert list(out.glob("export/*/model.keras"))
    assert (out / "logs" / "worker-0.log").is_file()
    assert not list(out.glob("model.ckpt*"))

    assert "kept mnist-training" in trainer(release, "delete", "mnist").stdout
    assert left(release).split() == ["persistentvolumeclaim/mnist-training"]
    trainer(release, "delete", "mnist", "--data")
    wait(lambda: not left(release), 60, lambda: left(release))
    assert "there is no run mnist in the namespace" in trainer(release, "delete", "mnist", code=2).stderr


LARGE = """
from pathlib import Path
import keras
import numpy as np

def train_data(context):
    rows = np.loadtxt(Path(__file__).with_name("clicks.csv"), delimiter=",")
    return rows[:, :2].astype("float32"), rows[:, 2].astype("int64")

def model():
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    network.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network
"""


def test_a_large_folder_is_copied_and_ctrl_c_leaves_the_run(release: Release, cheap: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    model = tmp_path / "project" / "mine.py"
    model.write_text(LARGE)
    data = tmp_path / "project" / "clicks.csv"
    data.write_text("".join(f"{n % 97},{n % 89},{int(n % 97 > 50)}\n" for n in range(150_000)))
    words = ["--model", str(model), "--workers", "1", "--train_steps", "1000000", "--name", release.name]
    log = tmp_path / "submit.log"
    with log.open("w") as output:
        command = [*start_of(release, "submit"), *words, cheap]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)
    wait(lambda: "step " in log.read_text() or process.poll() is not None, 300, log.read_text)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130, log.read_text()
    text = log.read_text()
    assert "copying 2 files, 1." in text
    assert "the run mnist goes on" in text
    assert "Traceback" not in text

    trainer(release, "stop", "mnist")
    assert "the run mnist is suspended" in trainer(release, "follow", "mnist", code=1).stdout
    assert not release.tasks()
    trainer(release, "resume", "mnist")
    follow = subprocess.Popen([*start_of(release, "follow"), "mnist"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with follow:
        assert follow.stdout
        assert any("starting 1 ps, 1 worker" in line for line in follow.stdout), "it does not end as suspended"
        follow.terminate()
    wait(lambda: "restored /training/model.ckpt" in release.log("mnist-worker-0"), 120, release.describe)
    done = trainer(release, "fetch", "mnist", str(tmp_path / "out"))
    assert "the run is not done: it was at step " in done.stdout
    assert "ps 0: serving on " in trainer(release, "logs", "mnist", "--task", "ps-0").stdout
    trainer(release, "delete", "mnist", "--data")
    wait(lambda: not left(release), 90, lambda: left(release))


def test_what_a_cluster_refuses_is_a_sentence(release: Release, cheap: str, tmp_path: Path) -> None:
    words = ("--registry", "registry.invalid/x", "--name", "absent", "--detach", cheap)
    trainer(release, "submit", *words)
    release.helm("install", "other", str(ROOT / "tests/e2e/other_chart"))
    for command in ("delete", "stop", "fetch"):
        done = trainer(release, command, "other", *(["out"] if command == "fetch" else []), code=2)
        assert "other is a release of the chart other, and not a run" in done.stderr
    own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "never-submitted"}, "data": {"a": "b"}}
    release.kubectl("create", "--filename=-", text=json.dumps(own))
    refused = tmp_path / "refused.yaml"
    refused.write_text(yaml.safe_dump({"common": {"extraVolumes": [{"name": "config", "emptyDir": {}}]}}))
    trainer(release, "submit", "--name", "refused", "--model", str(MODEL), f"--values={refused}", cheap, code=2)
    kinds = "persistentvolumeclaims,configmaps,statefulsets,jobs"
    assert not release.kubectl("get", kinds, "--selector=app.kubernetes.io/instance=refused", "--output=name")
    never = tmp_path / "never.yaml"
    never.write_text(yaml.safe_dump({"image": {"tag": "absent"}, "supervisor": {"image": {"tag": "absent"}}}))
    done = trainer(release, "submit", "--name", "never", f"--values={never}", cheap, code=2)
    assert "the nodes cannot pull the image distributed-tensorflow/supervisor:absent (ErrImageNeverPull)" in done.stderr
    follow = subprocess.Popen([*start_of(release, "follow"), "absent"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with follow:
        assert follow.stdout
        assert any("the supervisor waits: ErrImagePull: " in line for line in follow.stdout)
        follow.terminate()

    release.kubectl("create", "serviceaccount", "weak")
    token = release.kubectl("create", "token", "weak").strip()
    config = tmp_path / "weak.conf"
    config.write_text(release.kubectl("config", "view", "--raw", "--flatten"))
    for change in (("set-credentials", "weak", f"--token={token}"), ("set-context", "--current", "--user=weak")):
        subprocess.run(["kubectl", f"--kubeconfig={config}", "config", *change], check=True, capture_output=True)
    as_weak = os.environ | {"KUBECONFIG": str(config)}

    def run_as_weak(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        full = [*start_of(release, command), *words]
        return subprocess.run(full, env=as_weak, capture_output=True, text=True, cwd=ROOT)

    weak = run_as_weak("runs")
    assert weak.returncode == 2
    user = f'User "system:serviceaccount:{release.namespace}:weak"'
    assert f'{user} cannot list resource "configmaps"' in weak.stderr
    assert "Traceback" not in weak.stderr
    account = f"--serviceaccount={release.namespace}:"
    release.kubectl("create", "rolebinding", "weak", "--clusterrole=edit", f"{account}weak")
    edit_only = run_as_weak("submit", "--name", "edit", "--detach", cheap)
    assert edit_only.returncode == 2
    assert "without the right to create Roles, name a service account for the supervisor" in edit_only.stderr
    release.kubectl("apply", "--filename", str(EXAMPLES / "rbac" / "supervisor.yaml"))
    release.kubectl("create", "serviceaccount", "run-supervisor")
    role = "distributed-tensorflow-supervisor"
    release.kubectl("create", "rolebinding", "run-supervisor", f"--clusterrole={role}", f"{account}run-supervisor")
    given = tmp_path / "account.yaml"
    given.write_text("supervisor: {serviceAccount: {name: run-supervisor}}")
    allowed = run_as_weak("submit", "--name", "edit", "--train_steps", "50", cheap, f"--values={given}")
    release.kubectl("delete", "clusterrole", role)
    assert "the run succeeded: edit-worker-0 ended with code 0" in allowed.stdout, allowed.stdout + allowed.stderr
