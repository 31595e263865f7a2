"""Examples: arrays in files, checked and normalised. It imports no TensorFlow."""
