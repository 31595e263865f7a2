"""What the modes of training gain over a network of a given speed: `python -m benchmarks.network`.

Each task has a network namespace of its own, as if it had a machine, and a link to a switch: a veth pair into a bridge,
which a token bucket filter (`tc-tbf`) slows to a rate in each direction. The packaged network is trained with as many
parameters as asked, by the trainer's modes, ParameterServerStrategy and MultiWorkerMirroredStrategy (each in the best
form that benchmarks/parameter_server_strategy.py and multi_worker_mirrored.py have), in interleaved rounds. There are
two workers and two parameter servers: as many, so that no parameter server's link carries more than a worker's.

The table has batches/s of all workers together, because a synchronous step has a batch of each worker. Its line above
says what one TCP connection moves between two of these hosts, because a machine may be slower than its links.

Needs Linux with iproute2 and util-linux, as root or with user namespaces. All links end with this process.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import programs
from benchmarks.learning import CLASSES, PIXELS
from benchmarks.processes import FailedError, Host
from benchmarks.programs import Data
from benchmarks.report import row, spread
from benchmarks.workload import Mode, Outcome, Workload

INSIDE = "--inside"
"""The first word of a command that has a network of its own."""
SUBNET, PORT = "10.99.0", 5000
PS, WORKERS = 2, 2
HOSTS = 1 + PS + WORKERS
"""ParameterServerStrategy has a coordinator beside its workers."""
STEPS = {0.3: 2000, 10.0: 128, 100.0: 32}
"""Batches of a run, by MB of parameters up to which they hold: multiples of 8 steps of 2 workers."""
RECEIVE = f"""
import socket, sys
server = socket.create_server((sys.argv[1], {PORT}))
print("ready", flush=True)
connection, _ = server.accept()
while connection.recv(1 << 20):
    pass
"""
SEND = f"""
import socket, sys, time
connection = socket.create_connection((sys.argv[1], {PORT}))
data, sent, began = bytes(1 << 20), 0, time.monotonic()
while time.monotonic() < began + 2:
    connection.sendall(data)
    sent += len(data)
print(sent * 8e-9 / (time.monotonic() - began))
"""

RATE_ALONE = ("--save_share=0", "--eval_seconds=3600")
"""Neither checkpoints nor evaluations in mid-run, which the strategies do not have either."""

Run = Callable[[Workload, Data, Sequence[Host]], Outcome]
Rates = dict[tuple[str, float], dict[int, float]]
"""Batches/s by program and MB of parameters, and by round."""


def trainer(*flags: str) -> Run:
    """The trainer with these flags."""
    return lambda workload, data, hosts: programs.run_trainer(workload, data, [*RATE_ALONE, *flags], hosts=hosts)


def allreduce(*flags: str) -> Run:
    """The trainer with all-reduce and these flags."""
    return lambda workload, data, hosts: programs.run_allreduce(workload, data, [*RATE_ALONE, *flags], hosts=hosts)


def strategy(run: Callable[..., Outcome]) -> Run:
    """A `tf.distribute` strategy in its best form."""
    return lambda workload, data, hosts: run(True, workload, data, flags=["--no_curve"], hosts=hosts)


BFLOAT16 = "--wire_dtype=bfloat16"
PROGRAMS: dict[str, tuple[Mode, Run]] = {
    "asynchronous": ("asynchronous", trainer()),
    "asynchronous, bfloat16": ("asynchronous", trainer(BFLOAT16)),
    "synchronous": ("synchronous", trainer()),
    "synchronous, bfloat16": ("synchronous", trainer(BFLOAT16)),
    "local SGD, 8 steps": ("synchronous", trainer("--local_steps=8")),
    "all-reduce": ("synchronous", allreduce()),
    "all-reduce, bfloat16": ("synchronous", allreduce(BFLOAT16)),
    "ParameterServerStrategy": ("asynchronous", strategy(programs.run_parameter_server_strategy)),
    "MultiWorkerMirroredStrategy": ("synchronous", strategy(programs.run_multi_worker_mirrored)),
}
YARDSTICK = "MultiWorkerMirroredStrategy"


def main(words: Sequence[str] | None = None) -> int:
    """Print a line for each run, and the tables; returns 1 if a run failed."""
    words = sys.argv[1:] if words is None else words
    is_inside, words = list(words[:1]) == [INSIDE], [word for word in words if word != INSIDE]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.network", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--gbits", nargs="+", type=float, default=[1, 10, 25], help="Gbit/s of each link (1 10 25)")
    parser.add_argument("--megabytes", nargs="+", type=float, default=list(STEPS), help="of parameters (0.3 10 100)")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="PROGRAM")
    parser.add_argument("--short", action="store_true", help="one round with few steps, to see that all runs")
    arguments = parser.parse_args(words)
    missing = [name for name in ("ip", "tc", "unshare", "mount") if shutil.which(name) is None]
    if missing:
        parser.exit(2, f"{missing[0]} is missing; install iproute2 and util-linux.\n")
    if not is_inside:
        own = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = ["unshare", "--mount", "--net", *own, sys.executable, "-m", "benchmarks.network", INSIDE, *words]
        return subprocess.run(command, check=False).returncode
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)  # where `ip netns` has its namespaces
    return measure(arguments)


def measure(arguments: argparse.Namespace) -> int:
    """Run everything, and print a table for each speed of the links."""
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        data = programs.prepare(Path(folder))
        hosts = add_hosts(HOSTS)
        for gbits in arguments.gbits:
            set_speed(hosts, gbits)
            tcp = tcp_gbits(*hosts[:2])
            found: Rates = defaultdict(dict)
            for number in range(1 if arguments.short else arguments.rounds):
                for megabytes in arguments.megabytes:
                    for name in arguments.programs:
                        mode, run = PROGRAMS[name]
                        workload = make_workload(mode, megabytes, arguments.short)
                        try:
                            rate = run(workload, data, hosts).rate * workload.batches_per_step
                        except FailedError as error:
                            print(f"FAILED: {name}: {error}", file=sys.stderr)
                            status = 1
                            continue
                        found[name, megabytes][number] = rate
                        print(f"{gbits:g} Gbit/s, round {number}, {megabytes:g} MB, {name}: {rate:.2f} batches/s")
            print(f"\n{render(gbits, tcp, arguments.megabytes, arguments.programs, found)}\n", flush=True)
    return status


def render(gbits: float, tcp: float, sizes: Sequence[float], names: Sequence[str], found: Rates) -> str:
    """The table of one speed."""
    speed = f"Links of {gbits:g} Gbit/s, over which one TCP connection moved {tcp:.2g} Gbit/s"
    lines = [f"{speed}; batches/s (times {YARDSTICK}):\n"]
    lines += [row(["program", *(f"{size:g} MB" for size in sizes)]), row(["---"] * (1 + len(sizes)))]
    for name in names:
        cells = [name]
        for size in sizes:
            rates, others = found[name, size], found[YARDSTICK, size]
            ratios = [rates[number] / others[number] for number in rates if number in others]
            times = f" ({spread(ratios, '{:.2f}')})" if ratios and name != YARDSTICK else ""
            cells.append(spread(list(rates.values())) + times if rates else "–")
        lines.append(row(cells))
    return "\n".join(lines)


def make_workload(mode: Mode, megabytes: float, short: bool) -> Workload:
    """The workload with so many parameters; a step of a synchronous one has a batch of each worker."""
    batches = next((count for size, count in STEPS.items() if megabytes <= size), min(STEPS.values()))
    steps = (16 if short else batches) // (1 if mode == "asynchronous" else WORKERS)
    units = round(megabytes * 1e6 / 4 / (PIXELS + 1 + CLASSES))
    return Workload(mode, ps=PS, workers=WORKERS, hidden_units=units, steps=steps)


def add_hosts(count: int) -> list[Host]:
    """Add namespaces that are connected by a bridge."""
    _ip("link add lan type bridge")
    _ip("link set lan up")
    for number in range(1, count + 1):
        _ip(f"netns add host{number}")
        _ip(f"link add port{number} type veth peer name eth0 netns host{number}")
        _ip(f"link set port{number} master lan up")
        _ip(f"-n host{number} address add {SUBNET}.{number}/24 dev eth0")
        _ip(f"-n host{number} link set eth0 up")
        _ip(f"-n host{number} link set lo up")
    return [Host(f"{SUBNET}.{number}", ("nsenter", f"--net=/run/netns/host{number}")) for number in range(1, count + 1)]


def set_speed(hosts: Sequence[Host], gbits: float) -> None:
    """Limit each host's link in both directions."""
    burst = max(256_000, int(gbits * 1e9 / 8 / 1000))  # a millisecond, and no less than four packets of the kernel
    limit = f"root tbf rate {gbits}gbit burst {burst} latency 20ms".split()
    for number, host in enumerate(hosts, start=1):
        subprocess.run(["tc", "qdisc", "replace", "dev", f"port{number}", *limit], check=True)
        subprocess.run([*host.enter, "tc", "qdisc", "replace", "dev", "eth0", *limit], check=True)


def tcp_gbits(one: Host, other: Host) -> float:
    """What one connection moves from one host to another, in Gbit/s."""
    python = (sys.executable, "-c")
    with subprocess.Popen([*other.enter, *python, RECEIVE, other.address], stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout
        receiver.stdout.readline()  # it listens
        sent = subprocess.run([*one.enter, *python, SEND, other.address], check=True, capture_output=True, text=True)
    return float(sent.stdout)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


if __name__ == "__main__":
    sys.exit(main())
