"""Faults of a run: `python -m benchmarks.faults` injects and measures each, `python -m benchmarks.faults.soak` many."""
