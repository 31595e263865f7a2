"""Recommenders by the trainer and by other programs: `python -m benchmarks.recommenders`, and docs/recommenders.md."""
