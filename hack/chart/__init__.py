"""Writes the files of the chart that come from other sources: `make chart-docs`."""
