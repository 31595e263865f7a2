"""The volumes of a TFJob: one of them may become the training directory, and others conflict with the chart's own."""

from trainer.tfjob.manifest import Map, fields
from trainer.tfjob.replica import MOUNT, Replica

OWN_VOLUMES = ("config", "task", "ended", "training", "data", "scratch", "shared-memory")
SCRATCH_PATHS = ("/tmp", "/home/trainer")  # noqa: S108 - paths in a container
"""The volumes and mounts that the chart sets itself."""
TRAINING_PATH = "/training"
"""The default of `trainingDirectory.path`."""


def resolve_conflicts(replica: Replica) -> None:
    """Resolve conflicts with the chart's volumes: rename volumes of the same name, drop mounts at the scratch paths."""
    task, pod, container = replica.values, replica.pod, replica.container
    names = {item.get("name") for item in task["extraVolumes"]} & set(OWN_VOLUMES)
    for name in sorted(names):
        pod.note(f"volumes[{name}]", f"called tfjob-{name}, for the chart has a volume of that name.")
    mounts = [*task["extraVolumeMounts"]]
    for item in (*task["initContainers"], *task["sidecars"]):
        mounts += fields(pod.at(f"containers[{item.get('name')}]"), item, pod.notes).items("volumeMounts", *MOUNT)
    for item in (*task["extraVolumes"], *mounts):
        if item.get("name") in names:
            item["name"] = f"tfjob-{item['name']}"
    if task["securityContext"].get("readOnlyRootFilesystem"):
        for item in task["extraVolumeMounts"]:
            if item.get("mountPath") in SCRATCH_PATHS:
                container.note(
                    f"volumeMounts[{item['mountPath']}]", "not carried over; the chart mounts an emptyDir there."
                )
        task["extraVolumeMounts"] = [
            item for item in task["extraVolumeMounts"] if item.get("mountPath") not in SCRATCH_PATHS
        ]


def to_training_directory(tasks: list[Map]) -> Map:
    """The chart's training directory: a claim that every role mounts, removed from their volumes, or none.

    The access mode is always ReadWriteMany: the chart then mounts the claim in all pods and does not restrict their
    nodes, as with TFJob.
    """
    shared = [mount for mount in _claim_mounts(tasks[0]) if all(mount in _claim_mounts(task) for task in tasks)]
    if not shared:
        return {"enabled": False}
    claim, path, sub_path = shared[0]
    for task in tasks:
        volumes = {item.get("name") for item in task["extraVolumes"] if _claim(item) == claim}
        task["extraVolumeMounts"] = [
            item
            for item in task["extraVolumeMounts"]
            if not (item.get("name") in volumes and item.get("mountPath") == path)
        ]
        others = [*task["initContainers"], *task["sidecars"]]
        mounts = [*task["extraVolumeMounts"], *(mount for item in others for mount in item.get("volumeMounts") or [])]
        used = {item.get("name") for item in mounts}
        task["extraVolumes"] = [
            item for item in task["extraVolumes"] if item.get("name") not in volumes or item.get("name") in used
        ]
    where = {"path": path} if path != TRAINING_PATH else {}
    part = {"subPath": sub_path} if sub_path else {}
    return {**where, "existingClaim": claim, **part, "accessModes": ["ReadWriteMany"]}


def _claim(volume: Map) -> str | None:
    """The claim of a volume, unless it is read-only."""
    source = volume.get("persistentVolumeClaim")
    return source.get("claimName") if isinstance(source, dict) and not source.get("readOnly") else None


def _claim_mounts(task: Map) -> list[tuple[str, str, str]]:
    """The claims that a task mounts, each with its mount path and subPath."""
    claims = {item.get("name"): claim for item in task["extraVolumes"] if (claim := _claim(item))}
    return [
        (claims[item.get("name")], item.get("mountPath", ""), item.get("subPath", ""))
        for item in task["extraVolumeMounts"]
        if item.get("name") in claims and {key for key in item if item[key]} <= set(MOUNT)
    ]
