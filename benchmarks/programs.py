"""The programs under measurement: one function each, from a workload to its outcome.

Each starts its processes on this machine, with the settings that the program's documentation recommends. The classic
code runs unchanged.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import learning
from benchmarks.processes import Host, Processes, Task, running
from benchmarks.workload import Outcome, Workload
from hack.busy_loops import busy_loops
from hack.ports import free_ports
from trainer.config import Settings
from trainer.data import digits
from trainer.training import threads

HERE = Path(__file__).parent
CLASSIC = HERE / "classic_mnist_replica.py"
INDEPENDENT_STEPS = 4
"""Independent processes take this many times the steps, so that they run concurrently for most of the time."""


@dataclass(frozen=True)
class Data:
    """The digits data set, in a folder that all programs read."""

    folder: Path
    images: Any
    """Of the held-out split, float32 [n, 784]."""
    labels: Any
    """Of the held-out split, int32 [n]."""


def prepare(folder: Path) -> Data:
    """Write digits.npz, the training split, and test.npz to a folder."""
    train, test = digits.load()
    for file, examples in {"digits": train, "test": test}.items():
        np.savez(folder / f"{file}.npz", x=examples.inputs.reshape(len(examples), -1), y=examples.targets)
    return Data(folder, test.inputs.reshape(len(test), -1), test.targets)


@contextmanager
def _started(tasks: Sequence[Task], workload: Workload) -> Iterator[Processes]:
    with tempfile.TemporaryDirectory() as folder, running(tasks, Path(folder), workload.timeout) as processes:
        yield processes


def _trainer(*flags: str | Path) -> list[str]:
    return [sys.executable, "-m", "trainer", "train", *map(str, flags)]


def run_trainer(
    workload: Workload,
    data: Data,
    flags: Sequence[str] = (),
    seed: int = 0,
    sample: bool = False,
    hosts: Sequence[Host] = (),
) -> Outcome:
    """Run the trainer on a cluster, a task on each host; `sample` also samples the parameters on the one ps."""
    ps, workers = _addresses(workload, hosts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = _trainer(*workload.flags, "--dataset=npz", f"--data_dir={data.folder}", f"--seed={seed}", *flags)
        command += [f"--sync_replicas={workload.mode == 'synchronous'}", f"--ps_hosts={','.join(ps)}"]
        command += [f"--worker_hosts={','.join(workers)}", f"--train_dir={folder}"]
        with (
            _sampling(ps, learning.TRAINER, workload, sample) as samples,
            _started(_tasks(workload, command, hosts), workload) as processes,
        ):
            processes.wait(workload.ps)  # worker 0, the chief
            outcome = _read_outcome(folder, processes)
    curve = samples.curve(data.images, data.labels) if samples else []
    return replace(outcome, curve=curve, first_step=samples.first_step - processes.started_at if curve else None)


def run_allreduce(
    workload: Workload, data: Data, flags: Sequence[str] = (), seed: int = 0, hosts: Sequence[Host] = ()
) -> Outcome:
    """Run the trainer with all-reduce, on workers without a ps, each on a host."""
    workload = replace(workload, ps=0)
    _, workers = _addresses(workload, hosts)
    with tempfile.TemporaryDirectory() as name:
        command = _trainer(*workload.flags, "--dataset=npz", f"--data_dir={data.folder}", f"--seed={seed}", *flags)
        command += ["--strategy=allreduce", f"--worker_hosts={','.join(workers)}", f"--train_dir={name}"]
        with _started(_tasks(workload, command, hosts), workload) as processes:
            processes.wait(0)
        return _read_outcome(Path(name), processes)


def run_classic(program: Path, workload: Workload, data: Data, sample: bool = False) -> Outcome:
    """Run the classic program, or one with its flags; `sample` needs the classic program's variable names."""
    ps, workers = _addresses(workload)
    command = [sys.executable, str(program), *workload.flags, f"--ps_hosts={','.join(ps)}"]
    command += [f"--worker_hosts={','.join(workers)}", f"--data={data.folder / 'digits.npz'}"]
    command += [f"--warmup_steps={workload.steps // 10}", *(["--sync"] if workload.mode == "synchronous" else [])]
    with (
        _sampling(ps, learning.CLASSIC, workload, sample) as samples,
        _started(_tasks(workload, command), workload) as processes,
    ):
        rate = float(json.loads(processes.wait_for_line(workload.ps))["rate"])  # its exit may take minutes
    curve = samples.curve(data.images, data.labels) if samples else []
    first_step = samples.first_step - processes.started_at if curve else None
    return Outcome(rate, processes.memory, curve[-1][2] if curve else None, curve, first_step)


def run_independent(workload: Workload, data: Data) -> Outcome:
    """Run one single-process trainer per worker, each with a worker's threads; the rate is their sum."""
    share = threads.choose(Settings(), "worker")
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(index) for index in range(workload.workers)]
        flags = [f"--train_steps={INDEPENDENT_STEPS * workload.steps}", *workload.flags[1:], "--dataset=npz"]
        flags += [f"--data_dir={data.folder}", f"--intra_op_threads={share.intra_op}"]
        flags += [f"--inter_op_threads={share.inter_op}"]
        tasks = [Task("single", _trainer(*flags, f"--train_dir={folder}")) for folder in folders]
        with _started(tasks, workload) as processes:
            for number in range(workload.workers):
                processes.wait(number)
        results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    return Outcome(sum(result["steps_per_second"] for result in results), processes.memory)


def run_single(workload: Workload, data: Data, seed: int, flags: Sequence[str] = ()) -> Outcome:
    """Run a single-process trainer on all examples of the workload; its accuracy is the reference."""
    steps = workload.steps * workload.batches_per_step
    with tempfile.TemporaryDirectory() as name:
        command = _trainer(
            f"--train_steps={steps}", *workload.flags[1:], *flags, f"--seed={seed}", f"--train_dir={name}"
        )
        command += ["--dataset=npz", f"--data_dir={data.folder}"]
        with _started([Task("single", command)], workload) as processes:
            processes.wait(0)
        return _read_outcome(Path(name), processes)


def _read_outcome(folder: Path, processes: Processes) -> Outcome:
    """Read the outcome from result.json in the training directory."""
    result = json.loads((folder / "result.json").read_text())
    best = result["best"]["test_accuracy"] if result["best"] else None
    return Outcome(result["steps_per_second"], processes.memory, result["test_accuracy"], best=best)


def run_beside_busy_loops(program: Callable[[Data], Outcome], data: Data) -> Outcome:
    """Run another program beside one busy loop per core."""
    with busy_loops(threads.usable_cpus()):
        return program(data)


def run_keras(workload: Workload, data: Data) -> Outcome:
    """Run the trainer with the model of keras_cnn.py."""
    return run_trainer(workload, data, flags=[f"--model={HERE / 'keras_cnn.py'}"])


def run_parameter_server_strategy(
    best: bool,
    workload: Workload,
    data: Data,
    seed: int = 0,
    flags: Sequence[str] = (),
    hosts: Sequence[Host] = (),
) -> Outcome:
    """Run `ParameterServerStrategy`: asynchronous, with a coordinator beside the workers."""
    form = [f"--flat={workload.ps}", f"--steps_per_execution={min(10, _execution(workload))}"] if best else []
    roles = {"chief": 1, "ps": workload.ps, "worker": workload.workers}
    flags = [*form, f"--seed={seed}", *flags]
    return _run_strategy("parameter_server_strategy", roles, "chief", flags, workload, data, hosts)


def run_multi_worker_mirrored(
    best: bool, workload: Workload, data: Data, seed: int = 0, flags: Sequence[str] = (), hosts: Sequence[Host] = ()
) -> Outcome:
    """Run `MultiWorkerMirroredStrategy`: synchronous, with workers only."""
    form = ["--flat=1", f"--steps_per_execution={_execution(workload)}"] if best else []
    roles, flags = {"worker": workload.workers}, [*form, f"--seed={seed}", *flags]
    return _run_strategy("multi_worker_mirrored", roles, "worker", flags, workload, data, hosts)


def _execution(workload: Workload) -> int:
    """Steps of an execution in the best form of a strategy: 50, or a tenth of a short run; at least 2."""
    return max(2, min(50, workload.steps // 10))


def _run_strategy(
    program: str,
    roles: Mapping[str, int],
    leader: str,
    flags: Sequence[str],
    workload: Workload,
    data: Data,
    hosts: Sequence[Host],
) -> Outcome:
    command = [sys.executable, "-m", f"benchmarks.{program}", *workload.flags, f"--data={data.folder}", *flags]
    addresses = iter(_places(sum(roles.values()), hosts))
    cluster = {role: [next(addresses) for _ in range(count)] for role, count in roles.items()}
    tasks = [
        Task(role, command, {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})})
        for role, count in roles.items()
        for index in range(count)
    ]
    with _started(_on(hosts, tasks), workload) as processes:
        result = json.loads(processes.wait_for_line([task.role for task in tasks].index(leader)))
    curve = [tuple(sample) for sample in result["curve"]]
    return Outcome(
        result["rate"], processes.memory, result["accuracy"], curve, result["first_step"] - processes.started_at
    )


def _places(count: int, hosts: Sequence[Host]) -> list[str]:
    """An address for each task: on the host with its number, or on this machine."""
    names = [host.address for host in hosts] or [Host().address] * count
    return [f"{name}:{port}" for name, port in zip(names, free_ports(count), strict=False)]


def _on(hosts: Sequence[Host], tasks: Sequence[Task]) -> list[Task]:
    """These tasks, each on the host with its number, or on this machine."""
    entered = (replace(task, command=[*host.enter, *task.command]) for task, host in zip(tasks, hosts, strict=False))
    return list(entered) if hosts else list(tasks)


def _addresses(workload: Workload, hosts: Sequence[Host] = ()) -> tuple[list[str], list[str]]:
    addresses = _places(workload.ps + workload.workers, hosts)
    return addresses[: workload.ps], addresses[workload.ps :]


def _tasks(workload: Workload, command: Sequence[str], hosts: Sequence[Host] = ()) -> list[Task]:
    """The tasks of a cluster configured by the classic flags: parameter servers, then workers."""
    roles = [("ps", workload.ps), ("worker", workload.workers)]
    tasks = [
        Task(role, [*command, f"--job_name={role}", f"--task_index={index}"])
        for role, count in roles
        for index in range(count)
    ]
    return _on(hosts, tasks)


def _sampling(ps: Sequence[str], names: tuple[str, Sequence[str]], workload: Workload, sample: bool) -> Any:
    return learning.sample_parameters(ps[0], names, workload.hidden_units) if sample else nullcontext()
