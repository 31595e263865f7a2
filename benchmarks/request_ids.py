"""How often TensorFlow takes two requests between tasks for one, with and without request_ids.cc.

    python -m benchmarks.request_ids --seconds 100

A parameter server, and a worker with three sessions that take one addition after the other. Each row is a process of
its own, because what numbers the requests is loaded before TensorFlow.
"""

import argparse
import subprocess
import sys
import threading
import time

from benchmarks.report import row
from hack.ports import free_ports

SESSIONS = 3


def main() -> int:
    """Measure; returns 0, or the code of a process that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100, help="of each process (default: %(default)g)")
    parser.add_argument("--imports", choices=("tensorflow", "trainer"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.imports:
        print(row([arguments.imports, *take_steps(arguments.imports, arguments.seconds)]))
        return 0
    print(row(["imported by", "steps", "aborted"]), row(["---"] * 3), sep="\n", flush=True)
    for name in ("tensorflow", "trainer"):
        command = [sys.executable, "-m", "benchmarks.request_ids", "--imports", name]
        done = subprocess.run([*command, "--seconds", str(arguments.seconds)], check=False)
        if done.returncode:
            return done.returncode
    return 0


def take_steps(imports: str, seconds: float) -> tuple[int, int]:
    """Take steps for so long; return how many, and how many of them TensorFlow has aborted."""
    if imports == "trainer":
        from trainer.tensorflow import tf
    else:
        import tensorflow as tf
    tf1 = tf.compat.v1
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    cluster = {"ps": addresses[:1], "worker": addresses[1:]}
    servers = [tf.distribute.Server(cluster, job_name=name, task_index=0) for name in cluster]
    with tf.Graph().as_default() as graph, tf.device("/job:ps/task:0"):
        total = tf1.placeholder_with_default(tf.zeros([]), []) + 1.0
    end = time.monotonic() + seconds
    found: list[bool] = []

    def run() -> None:
        with tf1.Session(servers[1].target, graph=graph) as session:
            step = session.make_callable(total)
            while time.monotonic() < end:
                try:
                    step()
                    found.append(True)
                except tf.errors.AbortedError:
                    found.append(False)

    threads = [threading.Thread(target=run) for _ in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(found), found.count(False)


if __name__ == "__main__":
    sys.exit(main())
