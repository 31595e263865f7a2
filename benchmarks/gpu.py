"""What the trainer makes of GPUs, beside Keras's `fit`: `python -m benchmarks.gpu`.

Programs train the same model in interleaved rounds, with `--batch_size` examples for a device: `fit` on one device; the
trainer on one, in one process and with a parameter server; and with an even number of devices, a parameter server with
two workers that have half of them each, and with as many workers as devices. The devices are the GPUs of this machine;
with `--cpu_devices N`, N logical devices of its CPUs, which shows what the processes cost, but not what GPUs gain. The
table has the median and the range of the rates in examples/s.
"""

import argparse
import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.processes import FailedError, Task, running
from benchmarks.report import row, spread
from hack.ports import free_ports
from trainer.launcher.plan import visible_gpus

TASK, FIT = "--task_with_devices", "--fit"
"""The first word of a task's command. The number of its logical devices follows, and the words of the trainer; or the
arguments of `_fit`."""
HERE = Path(__file__).parent
MODELS = {
    "cnn": (HERE.parent / "examples" / "models" / "cnn_batchnorm.py", (28, 28, 1)),
    "resnet50": (HERE / "resnet50.py", (64, 64, 3)),
}
"""The file of a model, and the shape of its images."""
EXAMPLES, CLASSES = 1024, 10
TIMEOUT = 900.0
WARMUP = 20
"""Steps of `fit` before those that count, in which GPU kernels are loaded."""


@dataclass(frozen=True)
class Bench:
    """What all programs train, and on what."""

    model: Path
    data: Path
    batch_size: int
    steps: int
    gpus: Sequence[str]

    def environment(self, first: int, count: int) -> dict[str, str]:
        """The variables of a task that has these devices."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[first : first + count])}


def main() -> None:
    """Print a line for each run, and the table; or run a task."""
    if sys.argv[1:2] == [TASK]:
        _run_task(int(sys.argv[2]), sys.argv[3:])
        return
    if sys.argv[1:2] == [FIT]:
        _fit(Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu_devices", type=int, help="logical devices instead of GPUs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=256, help="examples of a device (256)")
    parser.add_argument("--train_steps", type=int, default=300)
    parser.add_argument(
        "--model", choices=MODELS, default="resnet50", help="resnet50 (default) has 94 MB of parameters"
    )
    arguments = parser.parse_args()
    gpus = [] if arguments.cpu_devices else visible_gpus(None)
    count = arguments.cpu_devices or len(gpus)
    if not count:
        parser.exit(2, "no GPU is visible; name a number of --cpu_devices instead.\n")
    model, shape = MODELS[arguments.model]
    rates: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(model, Path(name), arguments.batch_size, arguments.train_steps, gpus)
        _write_data(bench.data, shape)
        programs = _programs(bench, count)
        for number in range(arguments.rounds):
            for label, measure in programs.items():
                try:
                    rates[label].append(measure())
                except FailedError as error:
                    print(f"round {number}: {label}: {error}", file=sys.stderr)
                else:
                    print(f"round {number}: {label}: {rates[label][-1]:,.0f} examples/s", file=sys.stderr)
    print(f"{arguments.model}, {arguments.batch_size} examples for each of {count} devices, {_machine(gpus)}\n")
    print(row(["program", "examples/s"]))
    print(row(["---", "---"]))
    for label, found in rates.items():
        print(row([label, spread(found, "{:,.0f}") if found else "failed"]))


def _programs(bench: Bench, count: int) -> dict[str, Callable[[], float]]:
    """What measures the rate in examples/s of each program, by its name."""
    found: dict[str, Callable[[], float]] = {
        "`fit`, one device": functools.partial(_measure_fit, bench, jit=True),
        "`fit` without XLA, one device": functools.partial(_measure_fit, bench, jit=False),
        "the trainer, one process, one device": functools.partial(_measure, bench, 0, 1, []),
    }
    for workers, each in dict.fromkeys([(1, 1), *([(2, count // 2), (count, 1)] if count % 2 == 0 else [])]):
        for mode in ("--sync_replicas=true", "--sync_replicas=false"):
            for wire in ("float32", "bfloat16"):
                label = f"1 ps, {workers} x {each}, {mode.strip('-')}, {wire}"
                flags = [mode, f"--wire_dtype={wire}"]
                found[label] = functools.partial(_measure, bench, workers, each, flags)
    return found


def _write_data(folder: Path, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    for split, size in {"train": EXAMPLES, "test": 64}.items():
        images = random.random((size, *shape), np.float32)
        np.savez(folder / f"{split}.npz", x=images, y=random.integers(0, CLASSES, size).astype(np.int32))


def _measure(bench: Bench, workers: int, devices: int, flags: Sequence[str]) -> float:
    """The rate of a cluster with one parameter server, or of one process with 0 workers."""
    ps, *hosts = (f"localhost:{port}" for port in free_ports(1 + workers))
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "benchmarks.gpu", TASK, str(0 if bench.gpus else devices), "train", *flags]
        command += [f"--model={bench.model}", "--dataset=npz", f"--data_dir={bench.data}", f"--train_dir={name}/run"]
        command += [f"--batch_size={bench.batch_size}", f"--train_steps={bench.steps}", "--eval_seconds=600"]
        command += ["--save_share=0", "--save_seconds=600"]
        tasks = [Task("single", command, bench.environment(0, devices))]
        if workers:
            command += [f"--ps_hosts={ps}", f"--worker_hosts={','.join(hosts)}"]
            tasks = [Task("ps", [*command, "--job_name=ps", "--task_index=0"])]
            for index in range(workers):
                words = [*command, "--job_name=worker", f"--task_index={index}"]
                tasks.append(Task("worker", words, bench.environment(index * devices, devices)))
        with running(tasks, Path(name), TIMEOUT) as processes:
            processes.wait(1 if workers else 0)  # the chief
        rate = float(json.loads((Path(name) / "run" / "result.json").read_text())["steps_per_second"])
    batches = devices * (workers if "--sync_replicas=true" in flags else 1)
    return rate * batches * bench.batch_size


def _measure_fit(bench: Bench, jit: bool) -> float:
    words = [bench.model, bench.data, bench.batch_size, bench.steps, int(jit)]
    command = [sys.executable, "-m", "benchmarks.gpu", FIT, *map(str, words)]
    with (
        tempfile.TemporaryDirectory() as name,
        running([Task("fit", command, bench.environment(0, 1))], Path(name), TIMEOUT) as processes,
    ):
        return bench.batch_size * float(json.loads(processes.wait(0))["rate"])


def _fit(file: Path, data: Path, batch_size: int, steps: int, jit: int) -> None:
    from benchmarks.stopwatch import Stopwatch

    with np.load(data / "train.npz") as train:
        images, labels = train["x"], train["y"]
    network = runpy.run_path(str(file))["model"](images.shape[1:], CLASSES)
    network.compile(network.optimizer, network.loss, jit_compile="auto" if jit else False)
    size = len(images) // batch_size * batch_size
    stopwatch = Stopwatch(steps, WARMUP)
    network.fit(images[:size], labels[:size], batch_size=batch_size, epochs=10**6, verbose=0, callbacks=[stopwatch])
    print(json.dumps({"rate": stopwatch.rate}), flush=True)


def _run_task(devices: int, words: Sequence[str]) -> None:
    from trainer import cli
    from trainer.tensorflow import tf

    if devices:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    sys.exit(cli.main(list(words)))


def _machine(gpus: Sequence[str]) -> str:
    if not gpus:
        return f"logical devices of {os.cpu_count()} CPUs"
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]


if __name__ == "__main__":
    main()
