"""The programs in `examples/programs` as real processes. They use only TF_CONFIG or arguments, not the trainer."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.ports import free_ports
from tests.processes.trainers import PATIENCE, Trainer

pytestmark = pytest.mark.long  # `make e2e` runs them in a cluster

PROGRAMS = Path(__file__).parents[2] / "examples" / "programs"

Cluster = dict[str, list[str]]
Process = subprocess.Popen[str]
Start = Callable[..., Process]


@pytest.fixture
def start(trainer: Trainer) -> Start:
    """Starts an example program as a task of a cluster, or with arguments only."""

    def program(name: str, *words: str, cluster: Cluster | None = None, task: tuple[str, int] | None = None) -> Process:
        config: dict[str, object] = {"environment": "cloud"}
        if cluster:
            config["cluster"] = cluster
        if task:
            config["task"] = dict(zip(("type", "index"), task, strict=True))
        return trainer.python(PROGRAMS / name, *words, TF_CONFIG=json.dumps(config))

    return program


def a_cluster(**tasks: int) -> Cluster:
    """Return a cluster with these numbers of tasks, on free ports of this machine."""
    ports = iter(free_ports(sum(tasks.values())))
    return {role: [f"localhost:{next(ports)}" for _ in range(count)] for role, count in tasks.items()}


def successful_output(process: Process) -> str:
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    return output


def kill_running(*processes: Process) -> None:
    for process in processes:
        assert process.poll() is None, process.communicate()[0]
        process.kill()
        process.communicate()


def figures(name: str, output: str) -> list[float]:
    return [float(figure) for figure in re.findall(rf"{name}: (-?[\d.]+)", output)]


def test_parameter_server_strategy_trains_and_only_its_chief_ends(start: Start) -> None:
    cluster = a_cluster(chief=1, worker=2, ps=1)

    def task(role: str, index: int) -> Process:
        return start("parameter_server_strategy.py", cluster=cluster, task=(role, index))

    chief = task("chief", 0)
    others = [task("worker", 0), task("worker", 1), task("ps", 0)]
    (accuracy,) = figures("test accuracy", successful_output(chief))
    assert accuracy > 0.9
    kill_running(*others)


def test_multi_worker_mirrored_trains_and_all_workers_end(start: Start) -> None:
    cluster = a_cluster(worker=2)
    workers = [start("multi_worker_mirrored.py", cluster=cluster, task=("worker", index)) for index in range(2)]
    first, second = map(successful_output, workers)
    (accuracy,) = figures("test accuracy", first)
    assert accuracy > 0.9
    assert not figures("test accuracy", second)


def test_the_program_with_classic_flags_trains_and_all_workers_end(start: Start) -> None:
    cluster = a_cluster(ps=1, worker=2)
    hosts = [f"--{role}_hosts={','.join(addresses)}" for role, addresses in cluster.items()]

    def task(role: str, index: int) -> Process:
        return start("classic_flags.py", *hosts, f"--job_name={role}", f"--task_index={index}")

    ps = task("ps", 0)
    workers = [task("worker", 0), task("worker", 1)]
    first, second = map(successful_output, workers)
    (accuracy,) = figures("test accuracy", first)
    assert accuracy > 0.9
    assert not figures("test accuracy", second)
    kill_running(ps)


def test_several_clients_use_the_same_standard_servers(start: Start) -> None:
    cluster = a_cluster(worker=2)
    servers = [start("standard_server.py", cluster=cluster, task=("worker", index)) for index in range(2)]

    def check_line(client: Process) -> None:
        output = successful_output(client)
        assert figures("slope", output) == [pytest.approx(2, rel=0.01)]
        assert figures("intercept", output) == [pytest.approx(10, rel=0.01)]

    check_line(start("linear_regression_client.py", cluster=cluster))
    addressed = f"--servers={','.join(cluster['worker'])}"
    for client in [start("linear_regression_client.py", addressed) for _ in range(2)]:  # at the same time
        check_line(client)
    kill_running(*servers)
