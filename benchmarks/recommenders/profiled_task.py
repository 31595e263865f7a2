"""A task of the trainer with TensorFlow's profiler server. Its first argument is the port, then come the trainer's."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from trainer.__main__ import main

if __name__ == "__main__":
    tf.profiler.experimental.server.start(int(sys.argv.pop(1)))
    sys.exit(main())
