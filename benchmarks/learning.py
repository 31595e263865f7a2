"""How fast a run learns: samples its parameters while it trains, and computes their test accuracy afterwards.

A separate session reads the parameters from the parameter server every 20 ms, as a worker does for every step. The
programs run unchanged, and these reads are the only disturbance.
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
SAMPLE_INTERVAL = 0.02
"""Seconds."""

TRAINER = ("part_0_of_1/updates", ("part_0_of_1/values",))
CLASSIC = ("global_step", ("hidden/w", "hidden/b", "softmax/w", "softmax/b"))
"""The names of the global step and of the parameters on the one parameter server."""


@dataclass
class Samples:
    """Samples of a run's parameters, each as one flat vector."""

    items: list[tuple[float, int, npt.NDArray[np.float32]]] = field(default_factory=list)

    def add(self, step: int, values: Sequence[Any]) -> None:
        """Add the current values at this global step."""
        if not self.items or self.items[-1][1] != step:
            self.items.append((time.time(), step, np.concatenate([np.ravel(value) for value in values])))

    def curve(self, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> list[tuple[float, int, float]]:
        """Samples as (seconds since the first step, global step, test accuracy)."""
        begin = self.first_step
        return [(at - begin, step, accuracy(values, images, labels)) for at, step, values in self.items if step > 0]

    @property
    def first_step(self) -> float:
        """When a sample first showed a step, in seconds since 1970; infinity if none did."""
        return next((at for at, step, _ in self.items if step > 0), math.inf)


def accuracy(flat: npt.NDArray[Any], images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """Accuracy on images [n, 784] of the classic network with these parameters, concatenated in the order of layers."""
    hidden = (len(flat) - CLASSES) // (PIXELS + 1 + CLASSES)
    ends = np.cumsum([PIXELS * hidden, hidden, hidden * CLASSES])
    first, first_biases, second, second_biases = np.split(flat, ends)
    layer = np.maximum(images @ first.reshape(PIXELS, hidden) + first_biases, 0)
    logits = layer @ second.reshape(hidden, CLASSES) + second_biases
    return float((logits.argmax(axis=1) == labels).mean())


@contextlib.contextmanager
def sample_parameters(ps: str, names: tuple[str, Sequence[str]], hidden_units: int) -> Iterator[Samples]:
    """Sample the parameters on this parameter server (HOST:PORT) until the context ends.

    A server that is not up yet, has other variables, or has stopped gives no samples.
    """
    from trainer.tensorflow import tf, tf1  # it disables eager execution, which the strategies need

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
    samples, stopped = Samples(), threading.Event()
    config = tf1.ConfigProto(device_filters=["/job:ps"], operation_timeout_in_ms=5000)

    def sample() -> None:
        while not stopped.wait(SAMPLE_INTERVAL):
            if peers.probe_error(ps):
                continue  # gRPC retries a server that is not up yet at ever longer intervals
            session = tf1.Session(f"grpc://{ps}", graph, config)  # never closed: the server has stopped by then
            with contextlib.suppress(tf.errors.OpError):
                while not stopped.wait(SAMPLE_INTERVAL):
                    now, arrays = session.run([step, values])
                    samples.add(int(now), arrays)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield samples
    finally:
        stopped.set()
        sampler.join(10)
