"""Tables whose rows are found by any ids: the layer, and what it needs to train by plain Keras."""
