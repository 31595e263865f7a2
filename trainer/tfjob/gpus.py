"""The GPUs of a TFJob, which are limits there and a number here."""

import re
from collections.abc import Mapping

from trainer.cluster.spec import Role
from trainer.tfjob.manifest import Map

NVIDIA = "nvidia.com/gpu"
GPU = re.compile(r"[^/]+/gpu(\.shared)?|nvidia\.com/mig-.+|gpu\.intel\.com/(i915|xe)")
"""The resource names that device plugins use for GPUs."""


def resource_name(tasks: Mapping[Role, Map]) -> str:
    """The resource that `gpus` counts, the same for all roles."""
    roles = [task for role, task in tasks.items() if role != "ps"]
    found = [name for task in roles for name in task["resources"]["limits"] if GPU.fullmatch(name)]
    return found[0] if found and NVIDIA not in found else NVIDIA


def take(task: Map, name: str) -> None:
    """Move the GPUs of a task from its resources to `gpus`."""
    count = str(task["resources"]["limits"].get(name, ""))
    if re.fullmatch("[0-9]+", count):
        task["gpus"] = int(count)
        for amounts in (task["resources"]["limits"], task["resources"]["requests"]):
            amounts.pop(name, None)
