"""Tools for development, and for tests and benchmarks: a throw-away Kubernetes, busy loops, free ports."""
