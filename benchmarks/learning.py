"""How fast a run learns: its parameters are looked at while it trains, and examined when it is over.

Looking is all that disturbs a run: a reader of its own reads the parameters from the parameter server every 20 ms, as a
worker does for every step; no program is changed for it. The test accuracy of what was seen is computed afterwards.
"""

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.cluster import peers

PIXELS, CLASSES = 784, 10
BETWEEN_LOOKS = 0.02

TRAINER = ("part_0_of_1/updates", ("part_0_of_1/values",))
CLASSIC = ("global_step", ("hidden/w", "hidden/b", "softmax/w", "softmax/b"))
"""The names of the global step and of the parameters on the one parameter server."""


@dataclass
class Seen:
    """The parameters at some moments of a run, each as one flat vector."""

    looks: list[tuple[float, int, npt.NDArray[np.float32]]] = field(default_factory=list)

    def add(self, step: int, values: Sequence[Any]) -> None:
        """They are these now, at this global step."""
        if not self.looks or self.looks[-1][1] != step:
            self.looks.append((time.time(), step, np.concatenate([np.ravel(value) for value in values])))

    def curve(self, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> list[tuple[float, int, float]]:
        """Seconds from the first step, the global step, and the test accuracy then."""
        begin = self.first_step
        return [(at - begin, step, accuracy(values, images, labels)) for at, step, values in self.looks if step > 0]

    @property
    def first_step(self) -> float:
        """When a step was first seen to have been taken, in seconds since 1970; infinity where none was."""
        return next((at for at, step, _ in self.looks if step > 0), math.inf)


def accuracy(flat: npt.NDArray[Any], images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """Of the classic network with these parameters, end to end in the order of its layers, on images [n, 784]."""
    hidden = (len(flat) - CLASSES) // (PIXELS + 1 + CLASSES)
    ends = np.cumsum([PIXELS * hidden, hidden, hidden * CLASSES])
    first, first_biases, second, second_biases = np.split(flat, ends)
    layer = np.maximum(images @ first.reshape(PIXELS, hidden) + first_biases, 0)
    logits = layer @ second.reshape(hidden, CLASSES) + second_biases
    return float((logits.argmax(axis=1) == labels).mean())


@contextlib.contextmanager
def watching(ps: str, names: tuple[str, Sequence[str]], hidden_units: int) -> Iterator[Seen]:
    """Look at the parameters on this parameter server (HOST:PORT) until the end of the context.

    A server that is not there yet, that holds other variables, or that is gone again, shows nothing.
    """
    from trainer.tensorflow import tf, tf1  # it takes eager execution away, which the strategies' programs need

    shapes_of = {
        "hidden/w": (PIXELS, hidden_units),
        "hidden/b": (hidden_units,),
        "softmax/w": (hidden_units, CLASSES),
        "softmax/b": (CLASSES,),
    }
    step_name, value_names = names
    graph = tf.Graph()
    with graph.as_default(), tf1.device("/job:ps/task:0/device:CPU:0"):

        def read(name: str, dtype: Any, shape: Any) -> Any:
            handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

        step = read(step_name, tf.int64, ())
        flat_size = (PIXELS + 1 + CLASSES) * hidden_units + CLASSES
        with tf.control_dependencies([step]):
            values = [read(name, tf.float32, shapes_of.get(name, (flat_size,))) for name in value_names]
    seen, over = Seen(), threading.Event()
    config = tf1.ConfigProto(device_filters=["/job:ps"], operation_timeout_in_ms=5000)

    def look() -> None:
        while not over.wait(BETWEEN_LOOKS):
            if peers.probe_error(ps):
                continue  # gRPC itself would look for a server that is not there yet at ever longer intervals
            session = tf1.Session(f"grpc://{ps}", graph, config)  # never closed, as the server is gone by then
            with contextlib.suppress(tf.errors.OpError):
                while not over.wait(BETWEEN_LOOKS):
                    now, arrays = session.run([step, values])
                    seen.add(int(now), arrays)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join(10)
