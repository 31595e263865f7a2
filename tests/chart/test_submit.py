"""The values that `trainer submit` writes, as the chart renders them."""

from pathlib import Path

import yaml

from tests.chart.chart import EXAMPLES, Manifests, parse, template
from trainer.client import bundle
from trainer.client.submission import Submission, prepare
from trainer.client.values import Tasks, merged
from trainer.config import load_values
from trainer.text.yaml_text import dump

MODEL = EXAMPLES / "models" / "regression.py"


def rendered(wanted: Submission) -> Manifests:
    done = template(dump(merged(wanted.given, wanted.values)), wanted.name)
    assert done.returncode == 0, done.stderr
    return Manifests(wanted.name, [item for item in parse(done.stdout) if item])


def test_every_task_has_the_files_of_the_model(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"worker": {"extraVolumes": [{"name": "mine", "emptyDir": {}}]}}))
    settings = load_values({"model": str(MODEL), "train_steps": 300})
    tasks = Tasks(ps=1, workers=2, chief=True, evaluator=True, gpus=1)
    manifests = rendered(prepare(settings, tasks, "mine", [own]))
    trainer = yaml.safe_load(manifests.get("ConfigMap/config data trainer.yaml"))
    assert (trainer["model"], trainer["train_steps"]) == (f"/code/{MODEL.name}", 300)
    for role in ("ps", "worker", "chief", "evaluator"):
        pod = f"StatefulSet/{role} spec template spec"
        assert manifests.get(f"{pod} containers {role} volumeMounts submitted mountPath") == "/code"
        items = manifests.get(f"{pod} volumes submitted configMap items")
        assert MODEL.name in [item["path"] for item in items]
        gpus = manifests.get(f"{pod} containers {role} resources limits nvidia.com/gpu")
        assert gpus == (1 if role in ("worker", "chief") else None)
    assert manifests.get("StatefulSet/worker spec template spec volumes mine")


def test_large_files_are_awaited_by_a_stage(tmp_path: Path) -> None:
    data = tmp_path / "clicks.csv"
    data.write_bytes(b"1" * (bundle.LARGEST_CONFIG_MAP + 1))
    wanted = prepare(load_values({"data_dir": str(data), "target": "y"}), Tasks(ps=1, workers=2), "mine")
    manifests = rendered(wanted)
    assert manifests.get("ConfigMap/config data trainer.yaml data_dir") == f"{wanted.folder}/_files/0/clicks.csv"
    (job,) = (job for job in manifests.of("Job") if "-stage-submitted-" in job["metadata"]["name"])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == wanted.folder
    assert [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "training"] == ["/training"]
