"""What an image runs, as docker, crane and skopeo print it, and how `trainer convert-tfjob --inspect` uses it."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.errors import ConfigurationError
from trainer.tfjob import inspect_image
from trainer.tfjob.program import Program

Run = Callable[..., subprocess.CompletedProcess[str]]

DOCKER = """
[
    {
        "Id": "sha256:f6d7261fe8cfa5e8d391a0fc65fba44108d23c2c19a0fb12f50a7d4822ab1d03",
        "RepoTags": ["distributed-tensorflow/trainer:0.1.0"],
        "RepoDigests": [],
        "Comment": "buildkit.dockerfile.v0",
        "Created": "2026-11-23T13:10:52.666468425Z",
        "ContainerConfig": {"Hostname": "", "User": "", "Env": null, "Cmd": null, "Image": "", "Entrypoint": null},
        "Author": "",
        "Config": {
            "Hostname": "",
            "User": "10001:10001",
            "Env": ["PATH=/opt/trainer/bin:/usr/bin:/bin", "HOME=/home/trainer"],
            "Cmd": null,
            "Volumes": null,
            "WorkingDir": "/home/trainer",
            "Entrypoint": ["trainer"],
            "OnBuild": null,
            "Labels": {"org.opencontainers.image.licenses": "Apache-2.0"}
        },
        "Architecture": "amd64",
        "Os": "linux",
        "RootFS": {"Type": "layers", "Layers": []}
    }
]
"""
"""What `docker image inspect` 28 prints, shortened."""

REGISTRY = """
{
  "architecture": "amd64",
  "created": "2024-03-12T20:05:50Z",
  "config": {"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["/bin/bash"], "WorkingDir": "/"},
  "os": "linux",
  "rootfs": {"type": "layers", "diff_ids": []}
}
"""
"""What `crane config` and `skopeo inspect --config` print, shortened."""


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (DOCKER, Program(("trainer",), ())),
        (REGISTRY, Program((), ("/bin/bash",))),
        ('[{"Config": null}]', Program((), ())),
        ('{"config": {"Entrypoint": ["sh", "-c"], "Cmd": ["a b"]}}', Program(("sh", "-c"), ("a b",))),
    ],
)
def test_the_entrypoint_and_the_arguments_of_an_image_are_read(text: str, program: Program) -> None:
    assert inspect_image.parse(text.encode(), "it") == program


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", "[3]", '[{"Config": [1]}]', '{"config": {"Cmd": "sh"}}', '{"config": {"Cmd": [1]}}']
)
def test_what_is_not_the_configuration_of_an_image_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--inspect: it[: ].*\.$"):
        inspect_image.parse(text.encode(), "it")


def job(**containers: Mapping[str, Any]) -> str:
    """A TFJob with one replica of each of these types."""
    specs = {
        key: {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "a/b:1", **container}]}}}
        for key, container in containers.items()
    }
    own = {"metadata": {"name": "mnist"}, "spec": {"tfReplicaSpecs": specs}}
    return yaml.safe_dump({"apiVersion": "kubeflow.org/v1", "kind": "TFJob", **own})


def install(folder: Path, name: str, script: str) -> None:
    """A program of this name in a folder, which also logs its arguments."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/log\n{script}\n')
    program.chmod(0o755)


WORDS = ("-m", "trainer", "convert-tfjob", "job.yaml", "--inspect")


def test_roles_without_a_command_run_what_their_image_runs(run_python: Run, tmp_path: Path) -> None:
    install(
        tmp_path / "bin", "docker", f"cat <<'END'\n{json.dumps([{'Config': {'Entrypoint': ['e'], 'Cmd': ['c']}}])}\nEND"
    )
    replicas: dict[str, dict[str, Any]] = {
        "Worker": {"workingDir": "/app"},
        "PS": {"args": ["own"]},
        "Chief": {"command": ["python"]},
        "Evaluator": {"image": "other:1"},
    }
    (tmp_path / "job.yaml").write_text(job(**replicas))
    done = run_python(*WORDS, "--entrypoint", "evaluator=x", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    values = yaml.safe_load(done.stdout)
    assert values["worker"]["command"] == ["sh", "-c", 'cd /app && exec "$@"', "sh", "e"]
    assert values["worker"]["args"] == ["c"]
    assert (values["ps"]["command"], values["ps"]["args"]) == (["e"], ["own"]), "args replace Cmd"
    assert (values["chief"]["command"], values["evaluator"]["command"]) == (["python"], ["x"])
    assert (tmp_path / "bin" / "log").read_text() == "docker image inspect -- a/b:1\n", "each image once"


@pytest.mark.parametrize(("args", "command"), [(["python", "x.py"], ["python", "x.py"]), ([], ["/bin/bash"])])
def test_without_an_entrypoint_the_arguments_are_the_command(
    run_python: Run, tmp_path: Path, args: list[str], command: list[str]
) -> None:
    install(tmp_path / "bin", "docker", "echo 'No such image: a/b:1' >&2; exit 1")
    install(tmp_path / "bin", "crane", f"cat <<'END'\n{REGISTRY}\nEND")
    (tmp_path / "job.yaml").write_text(job(Worker={"args": args}))
    done = run_python(*WORDS, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    values = yaml.safe_load(done.stdout)["worker"]
    assert (values["command"], "args" in values) == (command, False)
    assert (tmp_path / "bin" / "log").read_text() == "docker image inspect -- a/b:1\ncrane config -- a/b:1\n"


def test_an_image_without_a_program_is_refused(run_python: Run, tmp_path: Path) -> None:
    install(tmp_path / "bin", "docker", "echo '[{\"Config\": {}}]'")
    (tmp_path / "job.yaml").write_text(job(Worker={}))
    done = run_python(*WORDS, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "command: there is none, the image has no entrypoint, and there are no args, so nothing runs; " in done.stderr
    )


def test_an_image_that_cannot_be_read_is_one_sentence_with_the_reasons(run_python: Run, tmp_path: Path) -> None:
    install(tmp_path / "bin", "docker", "printf 'No such\\nimage: a/b:1' >&2; exit 1")
    (tmp_path / "job.yaml").write_text(job(Worker={}))
    done = run_python(*WORDS, PATH=f"{tmp_path / 'bin'}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "trainer: --inspect: the image a/b:1 cannot be read (docker: No such image: a/b:1; crane is not on the PATH; "
        "skopeo is not on the PATH); pull it, or state --entrypoint.\n"
    )


def test_docker_answers_about_a_real_image() -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs a running Docker")
    listing = ["docker", "image", "ls", "--format", "{{.ID}}", "--filter", "dangling=false"]
    images = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    if not images:
        pytest.skip("needs an image in the local Docker")
    wording = ["docker", "image", "inspect", "-f", "{{json .Config.Entrypoint}} {{json .Config.Cmd}}", images[0]]
    said = subprocess.run(wording, capture_output=True, text=True, check=True).stdout
    program = inspect_image.inspect(images[0])
    expected = " ".join(
        json.dumps(list(words) or None, separators=(",", ":")) for words in (program.entrypoint, program.arguments)
    )
    assert said.replace("[]", "null").strip() == expected
