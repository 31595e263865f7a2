"""What several devices in a worker gain over as many workers: `python -m benchmarks.gpu`.

Two workers with half of the devices each, and as many workers as there are devices, with one each, train the same model
in interleaved rounds, with one parameter server. The devices are the GPUs of this machine; with `--cpu_devices N`, N
logical devices of its CPUs, which shows what the processes cost, but not what GPUs gain. The table has the median and
the range of the rates in examples/s.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import Task, running
from benchmarks.report import spread
from hack.ports import free_ports
from trainer.launcher.plan import visible_gpus

TASK = "--task_with_devices"
"""The first word of a task's command: its number of logical devices follows, and then the words of the trainer."""
TIMEOUT = 900.0


def main() -> None:
    """Print a line for each run, and the table; or run a task."""
    if sys.argv[1:2] == [TASK]:
        _run_task(int(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu_devices", type=int, help="logical devices instead of GPUs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=100, help="examples of a device (100)")
    parser.add_argument("--train_steps", type=int, default=1000)
    parser.add_argument("--model", default="cnn")
    arguments = parser.parse_args()
    gpus = [] if arguments.cpu_devices else visible_gpus(None)
    count = arguments.cpu_devices or len(gpus)
    if count < 2 or count % 2:
        parser.exit(2, f"{count} devices, but an even number of at least 2 was expected; see --cpu_devices.\n")
    flags = [f"--batch_size={arguments.batch_size}", f"--train_steps={arguments.train_steps}"]
    flags.append(f"--model={arguments.model}")
    cases = [(2, count // 2), (count, 1)]
    rates: dict[tuple[int, int, bool], list[float]] = defaultdict(list)
    for number in range(arguments.rounds):
        for synchronous in (True, False):
            for workers, each in cases:
                rate = _measure(workers, each, gpus, [*flags, f"--sync_replicas={synchronous}"])
                rates[workers, each, synchronous].append(
                    rate * arguments.batch_size * each * (workers if synchronous else 1)
                )
                print(
                    f"round {number}: {workers} workers x {each}, synchronous={synchronous}: {rate:.1f} steps/s",
                    file=sys.stderr,
                )
    print(f"{arguments.model}, {arguments.batch_size} examples for each of {count} devices, {_machine(gpus)}\n")
    print("| workers x devices | synchronous, examples/s | asynchronous, examples/s |")
    print("| --- | --- | --- |")
    for workers, each in cases:
        cells = [spread(rates[workers, each, synchronous], "{:,.0f}") for synchronous in (True, False)]
        print(f"| {workers} x {each} | {' | '.join(cells)} |")


def _measure(workers: int, devices: int, gpus: Sequence[str], flags: Sequence[str]) -> float:
    """The rate of a run in global steps/s."""
    ps, *hosts = (f"localhost:{port}" for port in free_ports(1 + workers))
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "benchmarks.gpu", TASK, str(0 if gpus else devices), "train", *flags]
        command += [f"--ps_hosts={ps}", f"--worker_hosts={','.join(hosts)}", f"--train_dir={name}/run"]
        command += ["--eval_seconds=600", "--save_share=0"]
        tasks = [Task("ps", [*command, "--job_name=ps", "--task_index=0"], {"CUDA_VISIBLE_DEVICES": ""})]
        for index in range(workers):
            own = ",".join(gpus[index * devices : (index + 1) * devices])
            words = [*command, "--job_name=worker", f"--task_index={index}"]
            tasks.append(Task("worker", words, {"CUDA_VISIBLE_DEVICES": own}))
        with running(tasks, Path(name), TIMEOUT) as processes:
            processes.wait(1)  # the chief
        return float(json.loads((Path(name) / "run" / "result.json").read_text())["steps_per_second"])


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
