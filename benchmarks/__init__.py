"""The figures of README and docs/performance.md: `python -m benchmarks` measures and writes them."""
