"""The dashboard and the alerts read metrics that exist."""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.chart.chart import CHART, render
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.notes import Notes
from trainer.supervisor.run import Run
from trainer.telemetry.goodput import Account
from trainer.telemetry.metrics import Metrics

DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
OTHERS = {
    *("process_cpu_seconds_total", "process_resident_memory_bytes"),  # of Prometheus's client
    *("kube_job_failed", "kube_pod_status_phase"),  # of kube-state-metrics
}


def exposed() -> set[str]:
    """The names of the metrics of a replica, an evaluator and the supervisor, as Prometheus stores them."""
    measured = {"loss": 1.0, "accuracy": 1.0}
    task = Metrics("worker", 0, global_step=1, steps_per_second=1.0, batch_metrics=measured, test_metrics=measured)
    task.account = Account()
    run = TypeAdapter(Run).validate_json(render()["ConfigMap/supervisor"]["data"]["run.json"])
    collectors = (task, RunMetrics(run, Notes()))
    return {sample.name for collector in collectors for metric in collector.collect() for sample in metric.samples}


def expressions(place: Any) -> Iterator[str]:
    """Every PromQL expression of an object."""
    if isinstance(place, dict):
        for key, value in place.items():
            if key == "expr" or (key == "query" and "label_values" in str(value)):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(place, list):
        for item in place:
            yield from expressions(item)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's SDK needs Python 3.11")
def test_the_dashboard_is_that_of_the_generator() -> None:
    from hack.chart.dashboard import FILE, generate

    assert generate() == FILE.read_text(), "run make chart-docs"


def test_the_config_map_has_the_dashboard() -> None:
    data = render({"metrics.dashboard.enabled": True})["ConfigMap/dashboard"]["data"]
    assert json.loads(data["distributed-tensorflow.json"]) == DASHBOARD


def test_each_metric_of_the_dashboard_and_of_the_alerts_exists() -> None:
    rules = render({"metrics.prometheusRule.enabled": True})["PrometheusRule/run"]
    used = {
        name
        for expression in [*expressions(DASHBOARD), *expressions(rules)]
        for name in re.findall(r"\b(?:trainer|kube|process)_[a-z_]+", re.sub(r'"[^"]*"', "", expression))
    }
    assert {"trainer_run_state", "trainer_global_step", "kube_job_failed"} <= used
    assert used <= exposed() | OTHERS
