"""The program of a task's container: `command`, `args` and `extraArgs`, whose values may contain templates."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.chart.chart import CHART, EXAMPLES, Manifests, parse, refusal, render, template
from tests.chart.test_tf_config import environment_of

OWN = {"common.command": ["run"]}
HOSTS = '--hosts={{ include "distributed-tensorflow.hosts" (list . "%s") }}'


def program(manifests: Manifests, role: str = "worker") -> list[str]:
    """The command line that `task.sh` runs."""
    words = manifests.pods()[role]["spec"]["containers"][0]["args"]
    assert isinstance(words, list)
    return words


def expanded(manifests: Manifests, role: str = "worker") -> list[str]:
    """The command line of the second task of a role, with its variables replaced as by Kubernetes."""
    return [
        re.sub(r"\$\((\w+)\)", lambda found: environment_of(manifests, role, 1)[found[1]], word)
        for word in program(manifests, role)
    ]


@pytest.mark.parametrize(
    ("role", "values", "hosts"),
    [
        ("ps", {}, "mnist-ps-0.mnist-ps:2222"),
        ("worker", {"port": 3333}, "mnist-worker-0.mnist-worker:3333,mnist-worker-1.mnist-worker:3333"),
        (
            "worker",
            {"worker.replicas": 1, "worker.maxReplicas": 2},
            "mnist-worker-0.mnist-worker:2222,mnist-worker-1.mnist-worker:2222",
        ),
        ("chief", {}, ""),
        ("evaluator", {"evaluator.replicas": 1, "fullnameOverride": "m"}, "m-evaluator-0.m-evaluator:2222"),
    ],
)
def test_a_template_inserts_the_hosts_of_a_role(role: str, values: dict[str, Any], hosts: str) -> None:
    assert expanded(render({**OWN, **values, "worker.args": [HOSTS % role]})) == ["run", f"--hosts={hosts}"]


def test_the_hosts_of_a_thousand_tasks_are_in_no_pod() -> None:
    program = "exec run " + HOSTS % "worker" + " " + HOSTS % "ps"
    manifests = render({"common.command": ["sh", "-c", program], "worker.replicas": 1000, "ps.replicas": 1})
    hosts = ",".join(f"mnist-worker-{index}.mnist-worker:2222" for index in range(1000))
    assert expanded(manifests)[2] == f"exec run --hosts={hosts} --hosts=mnist-ps-0.mnist-ps:2222"
    assert not [item["kind"] for item in manifests if "worker-1." in json.dumps(item) and item["kind"] != "ConfigMap"]


def test_the_command_and_the_extra_arguments_may_contain_templates() -> None:
    assert program(render({"common.command": ["{{ .Release.Name }}"]})) == ["mnist"]
    assert program(render({"extraArgs": ["--x={{ .Values.port }}"]}))[-1] == "--x=2222"


def test_arguments_that_yaml_parses_as_other_types_become_text() -> None:
    assert program(render({"common.command": [False, 5, 1000000, 0.001]})) == ["false", "5", "1000000", "0.001"]


@pytest.mark.parametrize(
    ("word", "rendered"),
    [
        ('--format={{ "{{" }}.Name}}', "--format={{.Name}}"),
        ("a}}", "a}}"),
        ("{a: 1} # $(POD_INDEX)", "{a: 1} # $(POD_INDEX)"),
        ("{{ 1 }}\n  two\n", "1\n  two\n"),
        ('{{ "true" }}', "true"),
    ],
)
def test_text_that_is_not_a_template_stays_unchanged(word: str, rendered: str) -> None:
    assert program(render({**OWN, "worker.args": [word]})) == ["run", rendered]


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("--format={{", 'cannot parse template "--format={{": template: gotpl:1: unclosed action'),
        ("{{ hosts }}", 'cannot parse template "{{ hosts }}": template: gotpl:1: function "hosts" not defined'),
        (
            HOSTS % "pss",
            'distributed-tensorflow.hosts: "pss" is not a role with addresses; use chief, worker, ps or evaluator.',
        ),
    ],
)
def test_an_invalid_template_is_reported(word: str, problem: str) -> None:
    assert problem in refusal({**OWN, "worker.args": [word]})


def test_a_template_with_another_result_changes_the_run_id() -> None:
    values = {**OWN, "supervisor.enabled": True, "worker.args": ["{{ .Values.tensorboard.service.port }}"]}
    before, after = render(values), render({**values, "tensorboard.service.port": 81})
    assert before.environment("worker")["TASK_RUN"] != after.environment("worker")["TASK_RUN"]


def test_the_example_with_classic_flags_has_the_hosts_of_its_release() -> None:
    text = (EXAMPLES / "values-classic-flags.yaml").read_text()
    done = template(text, "other")
    assert done.returncode == 0, done.stderr
    manifests = Manifests("other", [item for item in parse(done.stdout) if item])
    for role in ("ps", "worker"):
        assert expanded(manifests, role)[2:] == [
            "--ps_hosts=other-ps-0.other-ps:2222",
            "--worker_hosts=other-worker-0.other-worker:2222,other-worker-1.other-worker:2222",
            f"--job_name={role}",
            "--task_index=1",
        ]


@pytest.mark.parametrize(
    ("result", "succeeds"),
    [
        ({"global_step": 2000}, True),  # older versions wrote the file only at the end
        ({"global_step": 2000, "state": "done"}, True),
        ({"global_step": 2000, "state": "running"}, False),
        ({"global_step": 10, "state": "running", "test_accuracy": None}, False),
    ],
)
def test_helm_test_accepts_only_the_result_of_a_finished_run(
    result: dict[str, Any], succeeds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"test_accuracy": 0.9861} | result))
    monkeypatch.delenv("RUN_NOTES", raising=False)
    monkeypatch.setenv("RESULT", str(file))
    module: dict[str, Any] = {}
    exec((CHART / "files" / "test.py").read_text().removesuffix("main()\n"), module)  # noqa: S102 - a file of the chart
    assert bool(module["success"](packaged=True)) == succeeds
