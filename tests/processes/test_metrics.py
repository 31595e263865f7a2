"""Metrics of real tasks, scraped while they wait and train."""

import socket
from collections.abc import Callable

from hack.ports import free_ports
from tests.processes.trainers import PATIENCE, Trainer, wait_until
from tests.scraping import scrape

Hosts = Callable[[int, int], list[str]]


def test_every_role_exposes_metrics_while_it_waits_and_trains(trainer: Trainer, hosts: Hosts) -> None:
    flags = [*hosts(1, 2), "--train_steps=1000000", "--save_steps=100", "--train_dir=run"]
    ports = dict(zip(("ps", "first", "second", "evaluator"), free_ports(4), strict=True))

    def start(name: str, role: str, index: int) -> None:
        task = [f"--job_name={role}", f"--task_index={index}", f"--metrics_port={ports[name]}"]
        trainer.start("train", *flags, *task, TASK_RESTARTS="2")

    def value(name: str, metric: str) -> float:
        return scrape(ports[name]).get(f"trainer_{metric}", 0.0)

    start("second", "worker", 1)
    wait_until(lambda: value("second", "waiting_seconds_total") > 0)  # for the parameter server, which has not started
    assert value("second", "restarts_total") == 2
    assert "trainer_global_step" not in scrape(ports["second"])

    start("ps", "ps", 0)
    start("first", "worker", 0)
    start("evaluator", "evaluator", 0)
    wait_until(lambda: value("second", "loss") > 0)
    step = value("second", "global_step")
    waited = value("second", "waiting_seconds_total")
    wait_until(lambda: value("second", "global_step") > step)
    assert value("second", "waiting_seconds_total") == waited
    assert value("second", "examples_total") % 100 == 0
    assert value("second", "examples_total") > 0
    assert value("second", "checkpoints_total") == 0
    wait_until(lambda: value("first", "checkpoints_total") >= 2)
    assert value("first", "steps_per_second") > 0
    assert 0 < value("first", "accuracy") <= 1
    wait_until(lambda: value("evaluator", "test_accuracy") > 0)
    assert value("evaluator", "test_loss") > 0
    assert value("ps", "serving") == 1
    assert scrape(ports["ps"]).keys() >= {"trainer_task_info", "trainer_restarts_total"}

    for process in trainer.processes():
        process.terminate()
    wait_until(lambda: not trainer.processes())


def test_a_scrape_that_hangs_does_not_delay_the_exit(trainer: Trainer) -> None:
    (port,) = free_ports(1)
    process = trainer.start("train", "--train_steps=300", "--train_dir=run", f"--metrics_port={port}")
    wait_until(lambda: scrape(port))
    with socket.create_connection(("localhost", port)) as idle:
        idle.sendall(b"GET /metrics")
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
