"""Mirrored replication: one process computes gradients on all of its devices and applies their average.

Each device has its own batch. The parameters are on the first device and are copied to the others in each step; the
gradients are averaged on the first device. N devices are equivalent to a single device with N times the batch size.
"""

from collections.abc import Sequence

from trainer.graph.replication import Step, StepFunction, StepOutputs
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor


def average_over(devices: Sequence[str], functions: Sequence[StepFunction]) -> StepFunction:
    """Take each step on its device, and average the outputs on the first device."""

    def make_step(number: int) -> Step:
        steps = []
        for device, function in zip(devices, functions, strict=True):
            with tf1.device(device):
                steps.append(function(number))

        def compute(values: Sequence[Tensor]) -> StepOutputs:
            outputs = []
            for device, step in zip(devices, steps, strict=True):
                with tf1.device(device):
                    outputs.append(step.compute(values))
            with tf1.device(devices[0]):
                gradients = [_mean(shards) for shards in zip(*[each.gradients for each in outputs], strict=True)]
                metrics = {name: _mean([each.metrics[name] for each in outputs]) for name in outputs[0].metrics}
                return StepOutputs(gradients, _mean([each.loss for each in outputs]), metrics)

        return Step(compute, steps[0].rows)

    return make_step


def _mean(values: Sequence[Tensor]) -> Tensor:
    return tf.add_n(values) / len(values)
