"""Between-graph distributed TensorFlow training: the program that runs in every task of a cluster, and on a laptop."""

__version__ = "0.1.0"
