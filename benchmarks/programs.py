"""The programs that do a piece of work, each one function from the work to its outcome.

All are processes of this machine, each with what its documentation recommends: the trainer and the strategies as they
are, the classic code as it is.
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
from benchmarks.processes import Processes, Task, running
from benchmarks.work import Outcome, Work
from tests.busy_loops import busy_loops
from tests.ports import free_ports
from trainer.config import Settings
from trainer.data import datasets
from trainer.training import threads

HERE = Path(__file__).parent
CLASSIC = HERE / "classic_mnist_replica.py"
INDEPENDENT_STEPS = 4
"""Times as many steps for processes without communication: so that they run beside each other for most of the time."""


@dataclass(frozen=True)
class Data:
    """Digits, in a folder in which all programs find them."""

    folder: Path
    images: Any
    """Of the held-out split, float32 [n, 784]."""
    labels: Any
    """Of the held-out split, int32 [n]."""


def prepare(folder: Path) -> Data:
    """Write digits.npz, to train on, and test.npz to a folder."""
    digits = datasets.load("digits", folder, download=False)
    for file, examples in {"digits": digits.train, "test": digits.test}.items():
        np.savez(folder / f"{file}.npz", x=examples.images.reshape(len(examples), -1), y=examples.labels)
    return Data(folder, digits.test.images.reshape(len(digits.test), -1), digits.test.labels)


@contextmanager
def _started(tasks: Sequence[Task], work: Work) -> Iterator[Processes]:
    with tempfile.TemporaryDirectory() as folder, running(tasks, Path(folder), work.patience) as processes:
        yield processes


def _trainer(*flags: str | Path) -> list[str]:
    return [sys.executable, "-m", "trainer", "train", *map(str, flags)]


def run_trainer(work: Work, data: Data, flags: Sequence[str] = (), seed: int = 0, learn: bool = False) -> Outcome:
    """The trainer on a cluster; with `learn` its parameters are looked at meanwhile, on one ps."""
    ps, workers = _addresses(work)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = _trainer(*work.flags, "--dataset=npz", f"--data_dir={data.folder}", f"--seed={seed}", *flags)
        command += [f"--sync_replicas={work.mode == 'synchronous'}", f"--ps_hosts={','.join(ps)}"]
        command += [f"--worker_hosts={','.join(workers)}", f"--train_dir={folder}"]
        with _watching(ps, learning.TRAINER, work, learn) as seen, _started(_tasks(work, command), work) as processes:
            processes.wait(work.ps)  # worker 0, the chief
            outcome = _read_outcome(folder, processes)
    curve = seen.curve(data.images, data.labels) if seen else []
    return replace(outcome, curve=curve, first_step=seen.first_step - processes.began if curve else None)


def run_allreduce(work: Work, data: Data, seed: int = 0) -> Outcome:
    """The trainer on a cluster of workers alone, which hold the parameters themselves."""
    workers = [f"localhost:{port}" for port in free_ports(work.workers)]
    with tempfile.TemporaryDirectory() as name:
        command = _trainer(*work.flags, "--dataset=npz", f"--data_dir={data.folder}", f"--seed={seed}")
        command += ["--strategy=allreduce", f"--worker_hosts={','.join(workers)}", f"--train_dir={name}"]
        with _started(_tasks(replace(work, ps=0), command), work) as processes:
            processes.wait(0)
        return _read_outcome(Path(name), processes)


def run_classic(program: Path, work: Work, data: Data, learn: bool = False) -> Outcome:
    """The classic program, or another with its flags; it is looked at if its variables have the classic one's names."""
    ps, workers = _addresses(work)
    command = [sys.executable, str(program), *work.flags, f"--ps_hosts={','.join(ps)}"]
    command += [f"--worker_hosts={','.join(workers)}", f"--data={data.folder / 'digits.npz'}"]
    command += [f"--warmup_steps={work.steps // 10}", *(["--sync"] if work.mode == "synchronous" else [])]
    with _watching(ps, learning.CLASSIC, work, learn) as seen, _started(_tasks(work, command), work) as processes:
        rate = float(json.loads(processes.wait_for_line(work.ps))["rate"])  # its end may take minutes
    curve = seen.curve(data.images, data.labels) if seen else []
    first_step = seen.first_step - processes.began if curve else None
    return Outcome(rate, processes.memory, curve[-1][2] if curve else None, curve, first_step)


def run_independent(work: Work, data: Data) -> Outcome:
    """As many single processes of the trainer as there are workers, each with a worker's threads: their rates' sum."""
    share = threads.choose(Settings(), "worker")
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(index) for index in range(work.workers)]
        flags = [f"--train_steps={INDEPENDENT_STEPS * work.steps}", *work.flags[1:], "--dataset=npz"]
        flags += [f"--data_dir={data.folder}", f"--intra_op_threads={share.intra_op}"]
        flags += [f"--inter_op_threads={share.inter_op}"]
        tasks = [Task("single", _trainer(*flags, f"--train_dir={folder}")) for folder in folders]
        with _started(tasks, work) as processes:
            for number in range(work.workers):
                processes.wait(number)
        results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    return Outcome(sum(result["steps_per_second"] for result in results), processes.memory)


def run_single(work: Work, data: Data, seed: int, flags: Sequence[str] = ()) -> Outcome:
    """A single process of the trainer, which takes all examples of the work itself: its accuracy is what counts."""
    steps = work.steps * work.batches_per_step
    with tempfile.TemporaryDirectory() as name:
        command = _trainer(f"--train_steps={steps}", *work.flags[1:], *flags, f"--seed={seed}", f"--train_dir={name}")
        command += ["--dataset=npz", f"--data_dir={data.folder}"]
        with _started([Task("single", command)], work) as processes:
            processes.wait(0)
        return _read_outcome(Path(name), processes)


def _read_outcome(folder: Path, processes: Processes) -> Outcome:
    """What the trainer says of its run in the training directory."""
    result = json.loads((folder / "result.json").read_text())
    best = result["best"]["test_accuracy"] if result["best"] else None
    return Outcome(result["steps_per_second"], processes.memory, result["test_accuracy"], best=best)


def run_beside_busy_loops(program: Callable[[Data], Outcome], data: Data) -> Outcome:
    """Another program, while a busy loop runs for each core."""
    with busy_loops(threads.usable_cpus()):
        return program(data)


def run_parameter_server_strategy(best: bool, work: Work, data: Data, seed: int = 0) -> Outcome:
    """`ParameterServerStrategy`: asynchronous, with a coordinator beside the workers."""
    form = ["--flat", "--steps_per_execution=10"] if best else []
    ports = iter(free_ports(1 + work.ps + work.workers))
    cluster = {
        role: [f"localhost:{next(ports)}" for _ in range(count)]
        for role, count in (("chief", 1), ("ps", work.ps), ("worker", work.workers))
    }
    return _run_strategy("parameter_server_strategy", cluster, "chief", [*form, f"--seed={seed}"], work, data)


def run_multi_worker_mirrored(best: bool, work: Work, data: Data, seed: int = 0) -> Outcome:
    """`MultiWorkerMirroredStrategy`: synchronous, workers alone."""
    form = ["--flat", "--steps_per_execution=50"] if best else []
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(work.workers)]}
    return _run_strategy("multi_worker_mirrored", cluster, "worker", [*form, f"--seed={seed}"], work, data)


def _run_strategy(
    program: str, cluster: Mapping[str, list[str]], leader: str, flags: Sequence[str], work: Work, data: Data
) -> Outcome:
    command = [sys.executable, "-m", f"benchmarks.{program}", *work.flags, f"--data={data.folder}", *flags]
    tasks = [
        Task(role, command, {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})})
        for role, addresses in cluster.items()
        for index in range(len(addresses))
    ]
    with _started(tasks, work) as processes:
        result = json.loads(processes.wait_for_line([task.role for task in tasks].index(leader)))
    curve = [tuple(look) for look in result["curve"]]
    return Outcome(result["rate"], processes.memory, result["accuracy"], curve, result["first_step"] - processes.began)


def _addresses(work: Work) -> tuple[list[str], list[str]]:
    addresses = [f"localhost:{port}" for port in free_ports(work.ps + work.workers)]
    return addresses[: work.ps], addresses[work.ps :]


def _tasks(work: Work, command: Sequence[str]) -> list[Task]:
    """The tasks of a cluster of the classic flags: parameter servers, then workers."""
    roles = [("ps", work.ps), ("worker", work.workers)]
    return [
        Task(role, [*command, f"--job_name={role}", f"--task_index={index}"])
        for role, count in roles
        for index in range(count)
    ]


def _watching(ps: Sequence[str], names: tuple[str, Sequence[str]], work: Work, learn: bool) -> Any:
    return learning.watching(ps[0], names, work.hidden_units) if learn else nullcontext()
