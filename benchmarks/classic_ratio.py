"""How fast the trainer is beside the classic code: one parameter server and two workers on this machine.

    python -m benchmarks.classic_ratio [--pairs 5] [--steps 3000] [--reference FILE]

The two run by turns on the same data (digits), each in processes of its own, so that a drift of the machine's speed
meets both. Printed: global steps per second over the steady part (after the first tenth) of every run, the ratio of
each pair, and the medians.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

from trainer import datasets
from trainer.launch import free_ports

CLASSIC = Path(__file__).with_name("classic_mnist_replica.py")
PATIENCE = 400.0
"""Seconds after which a run is taken for hanging."""


def main() -> None:
    """Run the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each program and mode (default: 5)")
    parser.add_argument("--steps", type=int, default=3000, help="global steps of each run (default: 3000)")
    parser.add_argument("--reference", type=Path, default=CLASSIC, help="another program with the same flags")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        digits = datasets.load("digits", folder, download=False)
        for file, examples in {"digits": digits.train, "test": digits.test}.items():
            np.savez(folder / f"{file}.npz", x=examples.images.reshape(len(examples), -1), y=examples.labels)
        print(f"{'mode':13} {'pair':>4} {'classic':>9} {'trainer':>9} {'ratio':>6}   (global steps/s)")
        for mode in ("asynchronous", "synchronous"):
            pairs = []
            for number in range(1, arguments.pairs + 1):
                classic = run_classic(arguments.reference, folder, arguments.steps, mode)
                ours = run_trainer(folder / f"{mode}-{number}", folder, arguments.steps, mode)
                pairs.append((classic, ours))
                print(f"{mode:13} {number:4} {classic:9.1f} {ours:9.1f} {ours / classic:6.2f}", flush=True)
            medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
            ratio = statistics.median(ours / classic for classic, ours in pairs)
            print(f"{mode:13} {'med.':>4} {medians[0]:9.1f} {medians[1]:9.1f} {ratio:6.2f}", flush=True)


def run_trainer(train_dir: Path, data_dir: Path, steps: int, mode: str) -> float:
    """One run of the trainer: its global steps per second."""
    command = [sys.executable, "-m", "trainer", "launch", "--ps", "1", "--workers", "2", "--json"]
    command += ["--dataset", "npz", "--data_dir", str(data_dir), "--train_steps", str(steps)]
    command += ["--train_dir", str(train_dir), f"--sync_replicas={mode == 'synchronous'}"]
    output = subprocess.check_output(command, text=True, timeout=PATIENCE)
    return float(json.loads(output)["steps_per_second"])


def run_classic(program: Path, data_dir: Path, steps: int, mode: str) -> float:
    """One run of the classic program: the global steps per second that its chief measures."""
    ps, *workers = (f"localhost:{port}" for port in free_ports(3))
    command = [sys.executable, str(program), f"--ps_hosts={ps}", f"--worker_hosts={','.join(workers)}"]
    command += [f"--data={data_dir / 'digits.npz'}", f"--train_steps={steps}", f"--warmup_steps={steps // 10}"]
    command += ["--sync"] if mode == "synchronous" else []
    tasks = [("ps", 0), ("worker", 1), ("worker", 0)]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((data_dir / "classic.log").open("w+"))
        processes = []
        for role, index in tasks:
            process = subprocess.Popen(
                [*command, f"--job_name={role}", f"--task_index={index}"], stdout=subprocess.PIPE, stderr=log, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        timer = threading.Timer(PATIENCE, processes[-1].kill)
        stack.callback(timer.cancel)
        timer.start()
        chief = processes[-1]
        assert chief.stdout is not None
        line = chief.stdout.readline()  # its last act; then nobody waits for the program's slow end
        if not line:
            log.seek(0)
            sys.exit(f"{log.read()}\n{program} ended without a result, with exit code {chief.wait()}")
        return float(json.loads(line)["rate"])


if __name__ == "__main__":
    main()
