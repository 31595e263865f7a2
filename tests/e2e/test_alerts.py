"""Prometheus itself reads the chart's alerts and the dashboard's queries, and raises the alerts."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import packages
from tests.chart.chart import render
from tests.chart.test_metrics import DASHBOARD, expressions

MINUTES = 120
WORKER = '{namespace="default", pod="mnist-worker-0"}'
SUPERVISOR = '{namespace="default", pod="mnist-run-0a1b-x2z", state="Running"}'


@pytest.fixture(scope="session", autouse=True)
def promtool() -> None:
    packages.ensure(packages.PROMETHEUS)


def check(*arguments: str, folder: Path) -> str:
    """Run promtool and return its output; fails the test if promtool does."""
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("series", "alerts"),
    [
        pytest.param({f"trainer_global_step{WORKER}": f"0+600x{MINUTES}"}, set(), id="it trains"),
        pytest.param(
            {f"trainer_global_step{WORKER}": f"0+600x60 36000x{MINUTES - 60}"}, {"TrainingRunStuck"}, id="it is stuck"
        ),
        pytest.param({}, set(), id="a program without these metrics"),
        pytest.param(
            {
                f"trainer_global_step{WORKER}": f"0+600x{MINUTES}",
                f"trainer_steps_per_second{WORKER}": f"10x100 4x{MINUTES - 100}",
            },
            {"TrainingRateFell"},
            id="its rate falls",
        ),
        pytest.param(
            {'kube_pod_status_phase{namespace="default", pod="mnist-ps-0", phase="Pending"}': f"0x60 1x{MINUTES}"},
            {"TrainingTaskPending"},
            id="a task is pending",
        ),
        pytest.param(
            {'kube_job_failed{namespace="default", job_name="mnist-run-0a1b", condition="true"}': f"1x{MINUTES}"},
            {"TrainingRunFailed"},
            id="it failed",
        ),
        pytest.param(
            {
                'kube_job_failed{namespace="default", job_name="mnist-2-run-0a1b", condition="true"}': f"1x{MINUTES}",
                'kube_pod_status_phase{namespace="other", pod="mnist-ps-0", phase="Pending"}': f"1x{MINUTES}",
                'trainer_global_step{namespace="default", pod="mnist-2-worker-0"}': f"1x{MINUTES}",
            },
            set(),
            id="other releases",
        ),
    ],
)
def test_the_alerts(tmp_path: Path, series: dict[str, str], alerts: set[str]) -> None:
    rules = render({"metrics.prometheusRule.enabled": True})["PrometheusRule/run"]["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    names = {rule["alert"] for rule in rules["groups"][0]["rules"]}
    running = {f"trainer_run_state{SUPERVISOR}": f"1x{MINUTES}"}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in (running | series).items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                "eval_time": f"{MINUTES - 1}m",
                "exp_samples": [{"labels": "{}", "value": int(name in alerts)}],
            }
            for name in sorted(names)
        ],
    }
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": [test]}))
    assert alerts <= names
    check("check", "rules", "rules.yaml", folder=tmp_path)
    check("test", "rules", "test.yaml", folder=tmp_path)


def test_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    queries = [
        query.replace("$__rate_interval", "5m") for query in expressions(DASHBOARD) if "label_values" not in query
    ]
    group: dict[str, Any] = {"name": "dashboard", "rules": []}
    group["rules"] = [{"record": f"query:{index}", "expr": query} for index, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [group]}))
    assert f"{len(queries)} rules found" in check("check", "rules", "rules.yaml", folder=tmp_path)
