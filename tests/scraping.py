"""Scrape a task's metrics as Prometheus does."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def scrape(port: int, host: str = "localhost") -> dict[str, float]:
    """The current samples at this port by name; empty if nothing listens."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except OSError:
        return {}
    return {sample.name: sample.value for family in families for sample in family.samples}
