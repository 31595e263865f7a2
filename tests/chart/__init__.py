"""The chart without a cluster: what real Helm renders and refuses, and its scripts as real processes."""
