"""Notes on the fields that are not carried over."""

from trainer.tfjob import gang_scheduling
from trainer.tfjob.manifest import Fields

NO_KEY = "not carried over; the chart has no key for it."
REASONS = {
    "activeDeadlineSeconds": "not carried over; no pod of a StatefulSet may have it; use run.activeDeadlineSeconds.",
    "hostname": "not carried over; the StatefulSet sets it.",
    "subdomain": "not carried over; the StatefulSet sets it.",
    "restartPolicy": "not carried over; TFJob ignores it too, and uses the restartPolicy beside the template.",
    "managedBy": "not carried over; only Helm manages a release.",
    "enableDynamicWorker": "not carried over; set worker.maxReplicas to the maximum number of workers, which TF_CONFIG "
    "then lists; TFJob lists only the worker itself and the parameter servers.",
    **gang_scheduling.REASONS,
}
"""Why a field is not carried over, if there is another reason than that the chart has no key for it."""


def close(part: Fields, otherwise: str = NO_KEY) -> None:
    """Note why each field that was not taken is not carried over."""
    part.close(REASONS, otherwise)
