"""Training data: loads, checks and normalizes arrays from files. Does not import TensorFlow."""
