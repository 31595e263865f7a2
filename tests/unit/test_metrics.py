"""Metrics as Prometheus reads them, over HTTP."""

import math
import socket
import time

import pytest

import trainer
from hack.ports import free_ports
from tests.scraping import scrape
from trainer.errors import ConfigurationError
from trainer.telemetry import metrics
from trainer.telemetry.goodput import Account
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Progress


def serve(shown: Metrics) -> int:
    """Serve these; the port."""
    (port,) = free_ports(1)
    metrics.serve(shown, port)
    return port


def test_unknown_values_are_not_exposed() -> None:
    port = serve(Metrics("worker", 1))
    ours = {name: value for name, value in scrape(port).items() if name.startswith("trainer_")}
    assert ours == {
        "trainer_task_info": 1.0,
        "trainer_restarts_total": 0.0,
        "trainer_examples_total": 0.0,
        "trainer_checkpoints_total": 0.0,
        "trainer_waiting_seconds_total": 0.0,
    }


def test_known_values_are_exposed_as_they_are_now() -> None:
    shown = Metrics("chief", 0, restarts=2)
    port = serve(shown)
    shown.report(Progress(10, 100, math.nan, {"accuracy": 0.75}, 12.5))
    shown.global_step, shown.examples, shown.checkpoints = 11, 1100, 3
    shown.test_metrics, shown.serving = {"loss": 0.5, "top-5 accuracy": 0.9}, True
    found = scrape(port)
    assert math.isnan(found.pop("trainer_loss"))
    assert (
        found.items()
        >= {
            "trainer_restarts_total": 2,
            "trainer_global_step": 11,
            "trainer_examples_total": 1100,
            "trainer_checkpoints_total": 3,
            "trainer_accuracy": 0.75,
            "trainer_steps_per_second": 12.5,
            "trainer_test_loss": 0.5,
            "trainer_test_top_5_accuracy": 0.9,
            "trainer_serving": 1,
        }.items()
    )
    shown.global_step = 12
    assert scrape(port)["trainer_global_step"] == 12
    assert "trainer_goodput" not in found
    shown.account = Account()
    shown.account.step(1)
    assert scrape(port)["trainer_goodput"] < 1


def test_the_task_and_every_help_text_are_exposed() -> None:
    shown = Metrics("worker", 3, global_step=1, serving=False)
    shown.report(Progress(1, 2, 0.5, {"accuracy": 0.5}, 1.0))
    for family in shown.collect():
        assert family.name.startswith("trainer_")
        assert family.documentation.endswith(".")
    (task,) = next(iter(shown.collect())).samples
    assert task.labels == {"role": "worker", "index": "3", "version": trainer.__version__}


def test_process_metrics_are_exposed() -> None:
    assert scrape(serve(Metrics("ps", 0)))["process_resident_memory_bytes"] > 1e6


def test_waiting_time_is_counted_while_it_lasts_and_never_decreases() -> None:
    shown = Metrics("worker", 0)
    assert shown.waiting_seconds == 0
    with shown.waiting():
        time.sleep(0.01)
        during = shown.waiting_seconds
        assert during > 0
    after = shown.waiting_seconds
    assert after >= during
    time.sleep(0.01)
    assert shown.waiting_seconds == after
    with pytest.raises(KeyError), shown.waiting():
        raise KeyError
    assert shown.waiting_seconds >= after


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_every_address_of_the_machine_answers(host: str) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    assert "trainer_task_info" in scrape(serve(Metrics("ps", 0)), host)


def test_clients_that_disconnect_early_are_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    port = serve(Metrics("ps", 0))
    for _ in range(5):
        with socket.create_connection(("localhost", port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
    assert scrape(port)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_a_port_in_use_is_a_sentence(address: str) -> None:
    with socket.create_server((address, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"metrics_port: {port} cannot be listened on .* another port"):
            metrics.serve(Metrics("ps", 0), port)


@pytest.mark.parametrize(("text", "restarts"), [("", 0), (" ", 0), ("0", 0), ("12", 12), (" 3\n", 3)])
def test_restarts_are_parsed(text: str, restarts: int) -> None:
    assert metrics.parse_restarts(text) == restarts


@pytest.mark.parametrize("text", ["-1", "1.5", "once", "٢", "1" * 5000, "a\nb"])
def test_a_malformed_number_of_restarts_is_a_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"TASK_RESTARTS: .* was given") as caught:
        metrics.parse_restarts(text)
    assert len(str(caught.value).splitlines()) == 1
