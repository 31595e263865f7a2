"""Local replication: one process learns on all of its devices, each from a batch of its own, and takes one step of all.

The parameters are on the first device and are copied to the others for each step; the average of the gradients is made
where the parameters are. It is the single process, with a batch that is so many times as large.
"""

from collections.abc import Sequence
from typing import Any

from trainer.graph.replication import Learn, Lesson
from trainer.tensorflow import tf, tf1


def learn_on(devices: Sequence[str], learners: Sequence[Learn]) -> Learn:
    """The learner that averages what these learn, each on its own device."""

    def learn(values: Sequence[Any], number: int) -> Lesson:
        lessons = []
        for device, learner in zip(devices, learners, strict=True):
            with tf1.device(device):
                lessons.append(learner(values, number))
        with tf1.device(devices[0]):
            gradients = [_mean(parts) for parts in zip(*[each.gradients for each in lessons], strict=True)]
            return Lesson(gradients, _mean([each.loss for each in lessons]), _mean([each.accuracy for each in lessons]))

    return learn


def _mean(values: Sequence[Any]) -> Any:
    return tf.add_n(values) / len(values)
