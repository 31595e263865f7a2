"""The names of optimizers' slots in checkpoints."""

MOMENTS = ("Adam", "Adam_1")
"""The slots of Adam, with the names of TensorFlow's optimizer."""
LARGEST_MOMENT = "vhat"
"""The slot of AMSGrad, with the name of TensorFlow's optimizer."""
AVERAGE = "average"
"""The slot of a Keras optimizer with the moving averages of the parameters (`use_ema`)."""
