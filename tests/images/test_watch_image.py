"""The image of the watch of the data has what files/watch.sh of the chart starts, and the chart."""

import pytest
from testinfra.host import Host

import trainer
from tests.images.conftest import WATCH_IMAGE, docker, inspected_or_skip

CHART = "/usr/share/distributed-tensorflow/chart"

pytestmark = pytest.mark.long  # CI does not build this image; `make e2e-long` does


@pytest.fixture(scope="module")
def image_name() -> str:
    inspected_or_skip(WATCH_IMAGE, "make build-watch-image")
    return WATCH_IMAGE


@pytest.mark.parametrize("command", ["helm version", "kubectl version --client", "setsid --wait true"])
def test_it_has_the_programs(container: Host, command: str) -> None:
    assert container.run(command).rc == 0


def test_it_has_the_chart_of_its_version(container: Host) -> None:
    assert f"appVersion: {trainer.__version__}" in container.check_output(f"helm show chart {CHART}").replace('"', "")
    assert container.run(f"helm template mnist {CHART}").rc == 0


def test_it_watches_a_dataset(image_name: str) -> None:
    watch = ["timeout", "20", "trainer", "data", "watch", "/data/none.lance", "--interval=1", "--", "true"]
    done = docker("run", "--rm", "--entrypoint", watch[0], image_name, *watch[1:])
    assert "waiting: there is no dataset at /data/none.lance" in done.stdout + done.stderr
