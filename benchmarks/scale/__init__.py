"""How the chart and the supervisor grow with the number of tasks, on simulated nodes; docs/scale.md has the table."""
