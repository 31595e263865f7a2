"""Local replication: one process learns on all of its devices, each from a batch of its own, and takes one step of all.

The parameters are on the first device and are copied to the others for each step; the average of the gradients is made
where the parameters are. It is the single process, with a batch that is so many times as large.
"""

from collections.abc import Sequence
from typing import Any

from trainer.graph.replication import GradientFunction, StepOutputs
from trainer.tensorflow import tf, tf1


def learn_on(devices: Sequence[str], learners: Sequence[GradientFunction]) -> GradientFunction:
    """The learner that averages what these learn, each on its own device."""

    def compute_gradients(values: Sequence[Any], number: int) -> StepOutputs:
        step_graph = []
        for device, learner in zip(devices, learners, strict=True):
            with tf1.device(device):
                step_graph.append(learner(values, number))
        with tf1.device(devices[0]):
            gradients = [_mean(shards) for shards in zip(*[each.gradients for each in step_graph], strict=True)]
            return StepOutputs(
                gradients, _mean([each.loss for each in step_graph]), _mean([each.accuracy for each in step_graph])
            )

    return compute_gradients


def _mean(values: Sequence[Any]) -> Any:
    return tf.add_n(values) / len(values)
