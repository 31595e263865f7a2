"""Tests of one module each; what it takes to run them is real: TensorFlow, sockets, files, processes."""
