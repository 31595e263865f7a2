"""A step on several devices: each computes the gradients of its own batch, and the first one their average.

N devices are equivalent to a single device with N times the batch size. The parameters come to one device, from where
the others copy them, and one gradient leaves: what crosses the network does not grow with the devices.
"""

from collections.abc import Sequence

from trainer.graph.replication import Compute, StepOutputs
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor


def average_over(devices: Sequence[str], functions: Sequence[Compute], source: str) -> Compute:
    """Compute each function on its device, and average the outputs on the first one.

    `source` is the device to which the parameters come once, for all.
    """

    def compute(values: Sequence[Tensor]) -> StepOutputs:
        with tf1.device(source):
            values = [tf.identity(each) for each in values]
        outputs = []
        for device, function in zip(devices, functions, strict=True):
            with tf1.device(device):
                outputs.append(function(values))
        with tf1.device(devices[0]):
            gradients = [_mean(shards) for shards in zip(*[each.gradients for each in outputs], strict=True)]
            metrics = {name: _mean([each.metrics[name] for each in outputs]) for name in outputs[0].metrics}
            return StepOutputs(gradients, _mean([each.loss for each in outputs]), metrics)

    return compute


def _mean(values: Sequence[Tensor]) -> Tensor:
    return tf.add_n(values) / len(values)
