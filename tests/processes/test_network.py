"""Tasks in network namespaces: one is cut off from the others, or comes back with another address."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.networks import Network, network, why_unavailable
from tests.processes.trainers import Trainer, step_in, wait_for_line, wait_until

pytestmark = pytest.mark.skipif(bool(why := why_unavailable()), reason=why or "available")

PORT = 2222


class Tasks:
    """Tasks of one cluster, each in a namespace of its own."""

    def __init__(self, trainer: Trainer, net: Network, names: list[str], *flags: str) -> None:
        self.net, self._trainer = net, trainer
        self._addresses = {name: net.add(name) for name in names}
        net.publish(self._addresses)
        self.replicas = [name for name in names if name.startswith("worker")]
        servers = ",".join(f"{name}:{PORT}" for name in names if name not in self.replicas)
        self._flags = [
            f"--worker_hosts={','.join(f'{name}:{PORT}' for name in self.replicas)}",
            *([f"--ps_hosts={servers}"] if servers else []),
            "--train_steps=1000000",
            "--report_steps=20",
            "--learning_rate=0.0001",
            "--train_dir=run",
            *flags,
        ]
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        role, _, index = name.partition("-")
        task = [f"--job_name={role}", f"--task_index={index}"]
        words = ["train", *self._flags, *task]
        self._processes[name] = self._trainer.start_in(self.net.command(name), self.log(name), *words)

    def move(self, name: str, number: int) -> None:
        """Kill a task, and start it at another address behind the same name, as Kubernetes replaces a pod."""
        self._processes[name].kill()
        self._processes[name].wait()
        self._addresses[name] = self.net.change_address(name, number)
        self.net.publish(self._addresses)
        self.start(name)

    def log(self, name: str) -> Path:
        return self._trainer.folder / f"{name}.log"

    def wait_for_steps(self) -> None:
        """Wait until each replica takes steps."""
        before = {name: len(self.log(name).read_text()) for name in self.replicas if self.log(name).exists()}
        wait_until(lambda: all(self._steps_since(name, before.get(name, 0)) for name in self.replicas))

    def wait_until_closed(self, name: str) -> None:
        """Wait until a task has no connection to another one."""
        wait_until(lambda: not self.net.connections(name))

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _steps_since(self, name: str, offset: int) -> bool:
        if not self.log(name).exists():
            return False
        later = self.log(name).with_suffix(".later")
        later.write_text(self.log(name).read_text()[offset:])
        return step_in(later) > 0


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


PARAMETER_SERVER = ["ps-0", "worker-0", "worker-1"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("cut", "flags"),
    [
        pytest.param("worker-1", [], id="a worker, asynchronous"),
        pytest.param("ps-0", ["--sync_replicas"], id="the ps, synchronous"),
        pytest.param("worker-0", ["--sync_replicas"], id="the chief, synchronous"),
    ],
)
def test_a_task_that_is_cut_off_goes_on_when_it_is_back(
    trainer: Trainer, net: Network, cut: str, flags: list[str]
) -> None:
    tasks = Tasks(trainer, net, PARAMETER_SERVER, *flags)
    tasks.wait_for_steps()
    assert net.connections(cut)
    net.cut(cut)
    for name in PARAMETER_SERVER:
        if name == cut or cut == "ps-0":
            tasks.wait_until_closed(name)  # TCP alone would keep them for a quarter of an hour
    waiting = "worker-1" if cut == "ps-0" else cut
    wait_for_line(tasks.log(waiting), "no step for ", "waiting for ps 0 at ")
    net.mend(cut)
    tasks.wait_for_steps()
    tasks.end()


@pytest.mark.parametrize("moved", ["ps-0", pytest.param("worker-1", marks=pytest.mark.long)])
def test_a_task_with_another_address_behind_its_name_is_found(trainer: Trainer, net: Network, moved: str) -> None:
    tasks = Tasks(trainer, net, PARAMETER_SERVER, "--sync_replicas")
    tasks.wait_for_steps()
    tasks.move(moved, 99)
    tasks.wait_for_steps()
    other = "worker-0" if moved == "ps-0" else "ps-0"
    wait_until(lambda: any(".99" in line for line in net.connections(other)))
    tasks.end()
