"""What a batch teaches, copied for each step: that copies learn right is seen in the tests of replication."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from trainer import replica
from trainer.config import Settings
from trainer.models import mlp
from trainer.tensorflow import tf, tf1

from .conftest import EXAMPLES, SIZE

PARAMETERS = mlp.parameters((784,), 10, 100)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_model_may_call_python(steps: int) -> None:
    seen = []

    def logits(parameters: Any, images: Any) -> Any:
        def look(images: Any) -> Any:
            seen.append(images.shape)
            return images

        looked_at = tf.numpy_function(look, [images], tf.float32)
        looked_at.set_shape(images.shape)
        return mlp.logits(parameters, looked_at)

    settings = Settings(batch_size=SIZE, steps_per_call=3)
    found = replica.build(settings, None, SimpleNamespace(logits=logits), PARAMETERS, EXAMPLES, 0, "this run")
    gc.collect()  # TensorFlow itself knows Python functions by weak references only
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        found.batches.begin(session)
        feeds = dict(zip(found.batches.feeds, found.batches.take(steps), strict=True))
        assert session.run(found.replication.calls[steps].step, feeds) == steps
    assert seen == [(SIZE, 784)] * steps
