"""The cluster as every task knows it: a typed specification, peers, ports. It imports no TensorFlow."""
