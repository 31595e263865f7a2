"""Benchmarks of the trainer: `python -m benchmarks` measures the figures of README and docs/performance.md."""
