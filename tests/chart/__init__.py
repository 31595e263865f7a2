"""Tests of the chart without a cluster: real Helm renders it, and its scripts run as real processes."""
