"""`trainer submit`: which files go along, what becomes of options, and what is refused before anything is installed."""

import argparse
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from trainer import cli, config
from trainer.client import bundle, commands, following, runs, submission, values
from trainer.client.cluster import Cluster, UnreachableError, error_of
from trainer.client.submission import prepare
from trainer.client.values import Tasks
from trainer.errors import ConfigurationError
from trainer.launcher import launch

NOT_IN_SUBMIT = {"--tensorboard": "the chart serves it in the cluster"}
"""Options of `trainer launch` that `trainer submit` has not, and why."""


def options(parser: config.Parser) -> dict[str, argparse.Action]:
    return {name: action for action in parser._actions for name in action.option_strings}


def test_what_ran_by_launch_runs_by_submit() -> None:
    of_launch, of_submit = options(launch.make_parser()), options(commands.make_parser())
    assert of_launch.keys() - of_submit.keys() == NOT_IN_SUBMIT.keys()
    for name in of_launch.keys() & of_submit.keys() - {"--help", "-h"}:
        first, second = of_launch[name], of_submit[name]
        assert (type(first), first.dest, first.type) == (type(second), second.dest, second.type), name
        if name != "--max_restarts":  # of each task there, of the run here
            assert first.default == second.default, name


def submitted(tmp_path: Path, *words: str, tasks: Tasks | None = None, **more: Any) -> submission.Submission:
    """What `trainer submit` makes of these settings."""
    settings = config.load(commands.make_parser().read([*words]), {})
    return prepare(settings, tasks or Tasks(1, 2), "mine", **more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, a module, data, and what does not go along."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "project"
    for name in ("mine.py", "lib/net.py", "lib/words.txt", ".hidden", "runs/a/model.ckpt", "__pycache__/mine.pyc"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    return made


BESIDE = ["lib/net.py", "lib/words.txt", "mine.py"]


@pytest.mark.parametrize(
    ("words", "tasks", "expected"),
    [
        ([], Tasks(1, 2), {}),
        (["--train_steps", "7", "--sync_replicas"], Tasks(1, 2), {"train": {"train_steps": 7, "sync_replicas": True}}),
        (["--model", "cnn"], Tasks(1, 2), {"train": {"model": "cnn"}}),
        (["--data", "s3://b/clicks"], Tasks(1, 2), {"data": {"uri": "s3://b/clicks"}}),
        (["--data", "/data/clicks"], Tasks(1, 2), {"data": {"uri": "/data/clicks"}}),
        (["--train_dir", "s3://b/runs/a"], Tasks(1, 2), {"trainingDirectory": {"uri": "s3://b/runs/a"}}),
        (["--grace_seconds", "90"], Tasks(1, 2), {"common": {"terminationGracePeriodSeconds": 95}}),
        ([], Tasks(0, 1, gpus=4), {"ps": {"replicas": 0}, "worker": {"replicas": 1, "gpus": 4}}),
        (
            [],
            Tasks(2, 3, chief=True, evaluator=True, gpus=1, max_restarts=9),
            {
                "ps": {"replicas": 2},
                "worker": {"replicas": 3, "gpus": 1},
                "chief": {"replicas": 1, "gpus": 1},
                "evaluator": {"replicas": 1},
                "run": {"backoffLimit": 9},
            },
        ),
    ],
)
def test_options_become_values(tmp_path: Path, words: list[str], tasks: Tasks, expected: dict[str, Any]) -> None:
    found = submitted(tmp_path, *words, tasks=tasks)
    assert found.bundle is None
    found.values.get("train", {}).pop("epochs", None)  # train_steps takes precedence over those of the model's file
    assert found.values == {"ps": {"replicas": 1}, "worker": {"replicas": 2}, **expected}


def test_the_folder_of_a_model_goes_along(folder: Path, tmp_path: Path) -> None:
    found = submitted(tmp_path, "--model", "project/mine.py")
    assert found.bundle
    assert sorted(found.bundle.files) == BESIDE
    assert found.values["train"]["model"] == "/code/mine.py"
    (volume,) = found.values["common"]["extraVolumes"]
    assert volume["configMap"]["name"] == found.config_map
    assert {item["path"]: item["key"] for item in volume["configMap"]["items"]} == found.bundle.keys()
    whole = submitted(tmp_path, "--model", "project")
    assert whole.bundle
    assert whole.values["train"]["model"] == "/code"


def test_git_says_what_goes_along(folder: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*.txt\nruns\n__pycache__\nproject/mine.py\n")
    found = submitted(tmp_path, "--model", "project/mine.py")
    assert found.bundle
    assert sorted(found.bundle.files) == ["lib/net.py", "mine.py"], "also the model itself, though git ignores it"


def test_local_data_and_weights_go_along(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text("a,y\n1,2\n")
    (tmp_path / "start.weights.h5").write_text("weights")
    (folder / "days").mkdir()
    (folder / "days" / "1.csv").write_text("a,y\n")
    words = ["--model", "project/mine.py", "--initial_weights", "start.weights.h5"]
    found = submitted(tmp_path, *words, "--data", "clicks.csv", "--target", "y")
    assert found.bundle
    assert sorted(found.bundle.files) == sorted(
        [*BESIDE, "days/1.csv", "_files/1/clicks.csv", "_files/0/start.weights.h5"]
    )
    assert found.values["data"] == {"uri": "/code/_files/1/clicks.csv"}
    assert found.values["train"]["initial_weights"] == "/code/_files/0/start.weights.h5"
    inside = submitted(tmp_path, "--model", "project/mine.py", "--data", "project/days")
    assert inside.values["data"] == {"uri": "/code/days"}
    alone = submitted(tmp_path, "--data", "project/days")
    assert alone.bundle
    assert sorted(alone.bundle.files) == ["_files/0/days/1.csv"]


def test_large_files_go_to_the_training_volume(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_bytes(b"1" * (bundle.LARGEST_CONFIG_MAP + 1))
    found = submitted(tmp_path, "--data", "clicks.csv")
    assert found.bundle
    assert found.folder == f"/training/.code/{found.bundle.digest}"
    assert found.values["data"] == {"uri": f"{found.folder}/_files/0/clicks.csv"}
    (stage,) = found.values["stages"]["before"]
    assert stage["command"][-1] == found.folder
    assert "extraVolumes" not in found.values.get("common", {})
    with pytest.raises(
        ConfigurationError, match="so they go to the training volume, but train_dir is on an object store"
    ):
        submitted(tmp_path, "--data", "clicks.csv", "--train_dir", "s3://b/runs/a")
    with pytest.raises(ConfigurationError, match="but with a chief no other task mounts that; leave out --chief"):
        submitted(tmp_path, "--data", "clicks.csv", tasks=Tasks(1, 2, chief=True))
    shared = tmp_path / "shared.yaml"
    shared.write_text("trainingDirectory: {accessModes: [ReadWriteMany]}\n")
    assert submitted(tmp_path, "--data", "clicks.csv", tasks=Tasks(1, 2, chief=True), values_files=[shared]).folder


def test_own_values_take_precedence_and_keep_their_volumes(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "worker: {replicas: 5, extraVolumes: [{name: mine}]}\ncommon: {extraVolumes: [{name: theirs}]}\n"
        "stages: {before: [{name: first}]}\n"
    )
    found = submitted(tmp_path, "--model", "project/mine.py", values_files=[own], registry="r.example.com/x")
    assert "replicas" not in found.values["worker"], "those of the file"
    assert (found.values["ps"], found.files) == ({"replicas": 1}, [own])
    assert found.values["image"] == {"registry": "r.example.com/x"}
    assert [each["name"] for each in found.values["common"]["extraVolumes"]] == ["submitted", "theirs"]
    assert [each["name"] for each in found.values["worker"]["extraVolumes"]] == ["submitted", "mine"]
    (tmp_path / "clicks.csv").write_bytes(b"1" * (bundle.LARGEST_CONFIG_MAP + 1))
    found = submitted(tmp_path, "--data", "clicks.csv", values_files=[own])
    assert [each["name"] for each in found.values["stages"]["before"]] == ["submitted", "first"]


def test_explicit_data_has_all_of_its_folders(tmp_path: Path) -> None:
    for name in ("cats", "runs", "node_modules", ".hidden"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "a.png").touch()
    found = bundle.collect(None, [tmp_path / "images"])
    assert {name.split("/")[3] for name in found.files} == {"cats", "runs", "node_modules"}


def test_a_name_that_is_not_text_is_refused(folder: Path) -> None:
    Path(os.fsdecode(bytes(folder) + b"/bad\xff.py")).touch()
    with pytest.raises(ConfigurationError, match=r"the name 'bad\\udcff.py' of a file is not printable text"):
        bundle.collect(folder / "mine.py", [])


def test_keys_of_a_config_map_differ(tmp_path: Path) -> None:
    files = dict.fromkeys(("a/b.py", "a_b.py", "1_a_b.py", "ä b.py", "..c"), tmp_path)
    keys = bundle.Bundle(files, {}).keys()
    assert len({*keys.values()}) == len(files)
    assert all(values_key.isascii() and "/" not in values_key for values_key in keys.values())
    assert not any(key.startswith("..") for key in keys.values())


def test_a_tar_file_has_the_files_of_links_and_no_owner(folder: Path) -> None:
    (folder / "link.py").symlink_to(folder / "mine.py")
    buffer = io.BytesIO()
    bundle.collect(folder / "mine.py", []).write_tar(buffer)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive:
        entries = {entry.name: entry for entry in archive}
    assert sorted(entries) == sorted([*BESIDE, "link.py"])
    assert all(entry.isfile() and entry.uid == 0 and entry.mode & 0o444 == 0o444 for entry in entries.values())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "absent.csv"], "--data: there is no absent.csv on this machine; name a file or folder"),
        (
            ["--train_dir", "runs/a"],
            "--train_dir: runs/a is a path on this machine, but a run in a cluster has a volume",
        ),
        (["--model", "absent.py"], "model=absent.py: there is no such file"),
        (["--initial_weights", "absent.keras"], "--initial_weights: there is no "),
        (
            ["--model", "lib.net"],
            "model=lib.net: it names a module, which is not packed; name the path, --model lib/net.py",
        ),
        (["--strategy", "allreduce"], "--ps: 1 ps, but with strategy allreduce the workers hold the parameters"),
    ],
)
def test_bad_options_are_refused(
    folder: Path, tmp_path: Path, words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigurationError) as found:
        submitted(tmp_path, *words)
    assert sentence in str(found.value)


@pytest.mark.parametrize(("tasks", "option"), [(Tasks(-1, 2), "--ps: -1"), (Tasks(1, 0), "--workers: 0")])
def test_too_few_tasks_are_refused(tmp_path: Path, tasks: Tasks, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} was given, but at least [01] is needed; raise it"):
        submitted(tmp_path, tasks=tasks)


@pytest.mark.parametrize("name", ["Mine", "1st", "a_b", "a-", "a" * 41])
def test_a_name_is_one_of_kubernetes(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--name: .* was given, but a name has at most 40 lower-case letters"):
        prepare(config.load_values({}), Tasks(1, 2), name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"model": "mlp"}, "mlp-"),
        ({"model": "x/My Model_2.py"}, "my-model-2-"),
        ({"model": "x/2nd.py"}, "run-"),
        ({"model": "x/net/model.py"}, "net-"),
        ({"data_dir": "s3://bucket/clicks"}, "clicks-"),
        ({"data_dir": "customers.csv"}, "customers-"),
        ({}, "digits-"),
    ],
)
def test_a_name_is_made_of_that_of_the_model_or_the_data(given: dict[str, str], expected: str) -> None:
    name = submission._new_name(config.load_values(given))
    assert name.startswith(expected)
    assert submission.NAME.fullmatch(name)


def test_too_large_a_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGEST", 10)
    with pytest.raises(ConfigurationError, match=r"project: more than 0.0 kB of files .* in .gitignore"):
        bundle.collect(folder / "mine.py", [])


@pytest.mark.slow
def test_a_model_is_loaded_from_what_is_packed(folder: Path, tmp_path: Path) -> None:
    settings = config.load_values({"model": "project/mine.py"})

    def check(text: str) -> bool:
        (folder / "mine.py").write_text(f"import lib.net\nimport keras\n{text}")
        return submission.check_model(submitted(tmp_path, "--model", "project/mine.py"), settings)

    (folder / "lib" / "net.py").write_text("")
    assert check("def model(input_shape):\n    raise RuntimeError('the data makes it')\n")
    for text, sentence in (
        ("import absent", "model=mine.py cannot be imported: ModuleNotFoundError: No module named 'absent' (line 3)"),
        ("def model():\n    return keras.Model().compile(lost='mse')\n", "model=mine.py: model() failed: TypeError: "),
    ):
        with pytest.raises(ConfigurationError) as found:
            check(text)
        assert str(found.value).startswith(sentence)
        assert str(found.value).endswith(
            "; nothing was installed; if the image has what this machine lacks, add --skip_check."
        )


def test_values_are_merged_as_by_helm() -> None:
    merged = values.merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3}, "d": [2], "e": None})
    assert merged == {"a": {"b": 3, "c": 2}, "d": [2], "e": None}


@pytest.mark.parametrize(
    ("program", "stderr", "sentence", "is_passing"),
    [
        (
            "kubectl",
            'Error from server (Forbidden): pods is forbidden: User "x" cannot list resource "pods"\n',
            'kubectl get pods failed: (Forbidden): pods is forbidden: User "x" cannot list resource "pods".',
            False,
        ),
        (
            "kubectl",
            "E1130 02:00:00.1 1 memcache.go:265] couldn't get current server API group list\n"
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?\n",
            "kubectl finds no cluster: set KUBECONFIG to a kubeconfig, or name a context of it with --context.",
            False,
        ),
        (
            "kubectl",
            "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout\n",
            "kubectl get pods failed: Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout.",
            True,
        ),
        ("helm", "Error: INSTALLATION FAILED: no\n", "helm get pods failed: no.", False),
    ],
)
def test_errors_of_programs_are_one_sentence(program: str, stderr: str, sentence: str, is_passing: bool) -> None:
    error = error_of([program, "--namespace=x", "get", "pods", "--output=json"], stderr)
    assert str(error) == sentence
    assert isinstance(error, UnreachableError) == is_passing


def test_a_program_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match=r"helm is not on PATH: install Helm 3\.14 or later"):
        Cluster().helm("list")


A, B = "2026-11-30T02:00:00.000000001Z", "2026-11-30T02:00:00.000000002Z"


def test_lines_of_a_log_that_is_read_again_are_shown_once() -> None:
    said: list[str] = []
    shown = following._Shown(said.append)
    assert shown.begin("first") == []
    for line in (f"{A} one", f"{A} two", "failed to watch: too many open files", f"{B} three"):
        shown.log(line)
    assert shown.begin("first") == [f"--since-time={B}"]
    for line in (f"{A} one", f"{A} two", f"{B} three", f"{B} four"):
        shown.log(line)
    assert shown.begin("second") == [], "another pod, whose node may have another time"
    shown.log(f"{A} five")
    assert said == ["one", "two", "failed to watch: too many open files", "three", "four", "five"]


def objects_of(notes: dict[str, Any], **job: Any) -> list[dict[str, Any]]:
    """The objects of a supervisor, as Kubernetes has them."""
    labels, created = {runs.INSTANCE: "mine"}, "2026-11-30T02:00:00Z"
    annotations = {f"{runs.ANNOTATIONS}supervisor": "mine-run-1"}
    config_map = {
        "kind": "ConfigMap",
        "metadata": {"name": "mine-run", "labels": labels, "creationTimestamp": created, "annotations": annotations},
        "data": {"notes.json": json.dumps(notes)},
    }
    other = {"kind": "ConfigMap", "metadata": {"name": "mine-ended", "labels": labels, "creationTimestamp": created}}
    made = {"kind": "Job", "metadata": {"name": "mine-run-1", "annotations": job.pop("annotations", {})}, **job}
    return [config_map, other, made]


WHY = "the supervisor's Job has failed"
FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": "too late"}]}


@pytest.mark.parametrize(
    ("notes", "job", "state", "outcome"),
    [
        ({}, {}, "Pending", ""),
        ({"state": "Running", "job": "mine-run-1"}, {}, "Running", ""),
        ({"state": "Suspended", "job": "mine-run-0"}, {}, "Pending", ""),
        ({"state": "Failed", "job": "mine-run-1", "reason": "why"}, {}, "Failed", "why"),
        (
            {"state": "Running", "job": "mine-run-1"},
            {"status": FAILED},
            "Failed",
            "the supervisor's Job has failed: too late",
        ),
        ({"state": "Succeeded", "job": "mine-run-1", "reason": "why"}, {"status": FAILED}, "Succeeded", "why"),
    ],
)
def test_the_state_of_a_run_is_that_of_the_supervisor_that_its_release_wants(
    notes: dict[str, Any], job: dict[str, Any], state: str, outcome: str
) -> None:
    (run,) = runs._runs(objects_of(notes, **job))
    assert (run.name, run.state, run.outcome, run.has_job) == ("mine", state, outcome, True)


def test_the_command_line_has_all_commands_of_the_client() -> None:
    assert tuple(commands.COMMANDS) == cli.CLIENT
