"""Ends TensorBoard some time after the run: `trainer supervise --stop_tensorboard`, a Job of its own.

The supervisor cannot do that, because its Job completes with the run.
"""

import logging
import time

from trainer.supervisor import lifecycle
from trainer.supervisor.connection import STOPPED, Connection, StoppedError
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import parse
from trainer.supervisor.run import Run
from trainer.supervisor.scales import TENSORBOARD, tensorboard_after

logger = logging.getLogger(__name__)

POLL_SECONDS = 15.0


def stop_tensorboard(run: Run, connection: Connection) -> None:
    """Wait until the run is over and its time to live has passed, and set TensorBoard's scale to 0.

    Raises:
        StoppedError: SIGTERM or SIGINT arrived.
    """
    api = KubernetesApi(run, connection)
    while True:
        notes = parse(api.read_notes())
        if lifecycle.is_over(run, notes) and tensorboard_after(run, notes, time.time()) == 0:
            break
        if connection.stopping.wait(POLL_SECONDS):
            raise StoppedError(STOPPED)
    api.set_scale(TENSORBOARD, 0)
    logger.info("the run is over and tensorboard.ttlSecondsAfterFinished has passed: stopped TensorBoard")
