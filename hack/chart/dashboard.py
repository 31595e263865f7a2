"""The Grafana dashboard of the chart, which `make chart-docs` writes into its files."""

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode, BigValueTextMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

from hack.chart.values import CHART

FILE = CHART / "files" / "dashboard.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TASK_INFO = "trainer_task_info"
VARIABLES = {
    "namespace": f"label_values({TASK_INFO}, namespace)",
    "release": f'label_values({TASK_INFO}{{namespace="$namespace"}}, app_kubernetes_io_instance)',
}


def of(metric: str) -> str:
    """The metric of the chosen release."""
    return f'{metric}{{namespace="$namespace", app_kubernetes_io_instance="$release"}}'


def rate(metric: str) -> str:
    """The rate per second of a counter of the chosen release."""
    return f"rate({of(metric)}[$__rate_interval])"


NUMBERS = {
    "State": (f"max by (state) ({of('trainer_run_state')}) == 1", "short", BigValueTextMode.NAME),
    "Global step": (f"max({of('trainer_global_step')})", "none", BigValueTextMode.VALUE),
    "Test accuracy": (f"max({of('trainer_test_accuracy')})", "percentunit", BigValueTextMode.VALUE),
    "Restarts of tasks": (f"sum({of('trainer_run_restarts_total')})", "none", BigValueTextMode.VALUE),
}
GRAPHS = {
    "Global steps per second": ("short", {"all replicas": f"max({of('trainer_steps_per_second')})"}),
    "Examples per second": ("short", {"{{pod}}": rate("trainer_examples_total")}),
    "Loss": ("short", {"{{pod}}": of("trainer_loss"), "test": f"max({of('trainer_test_loss')})"}),
    "Accuracy": ("percentunit", {"{{pod}}": of("trainer_accuracy"), "test": f"max({of('trainer_test_accuracy')})"}),
    "Goodput": ("percentunit", {"{{pod}}": of("trainer_goodput")}),
    "Time spent waiting": ("percentunit", {"{{pod}}": rate("trainer_waiting_seconds_total")}),
    "Restarts": ("none", {"{{role}}": f"sum by (role) ({of('trainer_run_restarts_total')})"}),
    "CPU": ("short", {"{{pod}}": rate("process_cpu_seconds_total")}),
    "Memory": ("bytes", {"{{pod}}": of("process_resident_memory_bytes")}),
}


def generate() -> str:
    """Return the dashboard as JSON."""
    board = (
        dashboard.Dashboard("Distributed TensorFlow")
        .uid("distributed-tensorflow")
        .tags(["tensorflow", "training"])
        .refresh("15s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name, query in VARIABLES.items():
        board = board.with_variable(
            dashboard.QueryVariable(name)
            .label(name.capitalize())
            .datasource(SOURCE)
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
    for title, (expression, unit, text_mode) in NUMBERS.items():
        board = board.with_panel(
            stat.Panel()
            .title(title)
            .datasource(SOURCE)
            .unit(unit)
            .text_mode(text_mode)
            .graph_mode(BigValueGraphMode.NONE)
            .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
            .span(6)
            .height(4)
            .with_target(prometheus.Dataquery().expr(expression).legend_format("{{state}}"))
        )
    for title, (unit, queries) in GRAPHS.items():
        panel = timeseries.Panel().title(title).datasource(SOURCE).unit(unit).min(0).span(12).height(8)
        for legend, expression in queries.items():
            panel = panel.with_target(prometheus.Dataquery().expr(expression).legend_format(legend))
        board = board.with_panel(panel)
    return f"{JSONEncoder(sort_keys=True, indent=2).encode(board.build())}\n"


if __name__ == "__main__":
    FILE.write_text(generate())
