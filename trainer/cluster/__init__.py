"""The cluster: its typed specification, probes of its tasks, and ports. It does not import TensorFlow."""
