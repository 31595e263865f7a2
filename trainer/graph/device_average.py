"""A step on several devices: each computes the gradients of its own batch, and the first one their average.

N devices are equivalent to a single device with N times the batch size. The parameters come to one device, from where
the others copy them, and one gradient leaves: what crosses the network does not grow with the devices.
"""

from collections.abc import Sequence

from trainer.graph.replication import Compute, StepOutputs
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor


def average_over(
    devices: Sequence[str],
    functions: Sequence[Compute],
    source: str,
    sizes: Sequence[int] | None = None,
    weights: Sequence[Tensor] | None = None,
) -> Compute:
    """Compute each function on its device, and average the outputs on the first one.

    Args:
        devices: The devices.
        functions: Of each device.
        source: The device to which the parameters come once, for all.
        sizes: The elements of the dense gradients of each shard, if the weight of the batch follows on them, by which
            the average is divided. None if the average is the mean.
        weights: Those of the devices' batches in the loss and the metrics; None if they are equal.
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
            if sizes:
                gradients = [divide_by_weight(each, size) for each, size in zip(gradients, sizes, strict=True)]
            metrics = {name: measured([each.metrics[name] for each in outputs]) for name in outputs[0].metrics}
            totals = [each.totals for each in outputs if each.totals is not None]
            total = tf.add_n(totals) if totals else None
            return StepOutputs(gradients, measured([each.loss for each in outputs]), metrics, totals=total)

    def measured(values: Sequence[Tensor]) -> Tensor:
        if weights is None:
            return _mean(values)
        weighted = [tf.math.multiply_no_nan(each, weight) for each, weight in zip(values, weights, strict=True)]
        return tf.math.divide_no_nan(tf.add_n(weighted), tf.add_n(weights))

    return compute


def divide_by_weight(vector: Tensor, size: int) -> Tensor:
    """A vector without its weight, the element after the first `size` ones, by which the others are divided."""
    average = tf.math.divide_no_nan(vector, vector[size])
    return tf.concat([average[:size], average[size + 1 :]], axis=0)


def _mean(values: Sequence[Tensor]) -> Tensor:
    return tf.add_n(values) / len(values)
