"""Convert a Kubeflow TFJob to values of the chart.

Pure: `trainer.cli` reads the manifest and prints the results. Converting a field marks it as taken. A note names each
field that is not taken, so no field is dropped silently, not even an unknown one.

The semantics of a TFJob, and its defaults, are those of Kubeflow's training-operator 1.x
(https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/).
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.cluster.spec import ROLES, Role
from trainer.errors import ConfigurationError
from trainer.text.yaml_text import dump
from trainer.tfjob import extra_objects, gang_scheduling, gpus, kueue, labels, pod_security, volumes
from trainer.tfjob.manifest import LAST_APPLIED, WRITTEN_BY_THE_CLUSTER, Fields, Map, fields, is_empty
from trainer.tfjob.program import Program, to_role
from trainer.tfjob.replica import CONTAINER, GRACE_SECONDS, PORT_NAME, Replica, containers_of, convert_replica, image_of
from trainer.tfjob.run import convert_run, place_of
from trainer.tfjob.unconverted import close

PORT = 2222
REPLICA_TYPES = {name.lower(): name for name in ("Chief", "Master", "Worker", "PS", "Evaluator")}


@dataclass(frozen=True)
class Conversion:
    """The result of converting a TFJob."""

    name: str
    """The name of the job and of the release."""

    namespace: str
    """Empty if the TFJob has none."""

    values: Map
    notes: list[str]
    """A line for each field that is not carried over, with its path, and for each notable consequence."""


def images_without_command(job: Map) -> dict[Role, str]:
    """The images of the roles whose container has no command.

    Raises:
        ConfigurationError: the TFJob cannot run.
    """
    replica_specs = fields("", job, []).inner("spec").inner("tfReplicaSpecs")
    found: dict[Role, str] = {}
    for role, key in _types(replica_specs).items():
        replica = replica_specs.inner(key)
        container, _ = containers_of(replica.inner("template").inner("spec"))
        if replica.whole("replicas") != 0 and not container.words("command"):
            image_of(container)
            found[role] = container.text("image")
    return found


def convert(job: Map, programs: Mapping[Role, Program], others: Sequence[Map] = ()) -> Conversion:
    """The values with which the chart runs the same job as a TFJob.

    Args:
        job: The TFJob, from `parse_manifest`.
        programs: What the image runs, for each role whose container has no command.
        others: The manifest's other objects, from `parse_manifest`, which the release installs too.

    Raises:
        ConfigurationError: the TFJob cannot run, a command is missing, or a program is not needed.
    """
    notes: list[str] = []
    top = fields("", json.loads(json.dumps(job)), notes)  # a copy without shared parts
    for key in ("apiVersion", "kind", "status"):
        top.take(key)
    metadata = top.inner("metadata")
    own_labels = metadata.inner("labels")
    queue = kueue.take(own_labels)
    name, namespace, label = _identity(metadata, own_labels)
    spec = top.inner("spec")
    replica_specs = spec.inner("tfReplicaSpecs")
    replicas = _replicas(replica_specs, programs)
    tasks = {role: replica.values for role, replica in replicas.items()}
    leader = _leader(replica_specs, tasks)
    _let_the_run_end(replica_specs, replicas[leader])
    total = sum(task["replicas"] for task in tasks.values())
    if total == 1:
        notes.append(f"{replica_specs.path}: one task in all, to which TFJob gives no TF_CONFIG; the chart gives one.")
    port = _common_port(replica_specs, replicas, leader)
    policy = spec.inner("runPolicy")
    run = convert_run(spec, policy, leader)
    extra, notes_on_others = extra_objects.select(others)
    templates = [(replica.template.path, replica.values) for replica in replicas.values()]
    queued, notes_on_queue = kueue.convert(queue, templates, total, name)
    place = place_of("schedulingPolicy", spec, policy)
    scheduling, notes_on_gang = gang_scheduling.convert(place, templates, total, extra, queued.get("queue", ""))
    notes += notes_on_gang + notes_on_queue
    for part in (policy, spec, top):
        close(part)
    gpu = gpus.resource_name(tasks)
    for role, task in tasks.items():
        if role != "ps":  # the chart has no ps.gpus, so the GPUs stay in the resources
            gpus.take(task, gpu)
        task["resources"] = {key: value for key, value in task["resources"].items() if value}
    training = volumes.to_training_directory(list(tasks.values()))
    for replica in replicas.values():
        volumes.resolve_conflicts(replica)
    referred = _add_labels(replicas)
    notes += notes_on_others
    pod_security.note_restricted(replica_specs, replicas)
    values: Map = {
        "run": run,
        "scheduling": queued or scheduling,
        "supervisor": {"enabled": True},  # replaces the operator, without which no run ends
        "port": port if port != PORT else None,
        "portName": PORT_NAME,
        "gpu": {"resourceName": gpu} if gpu != gpus.NVIDIA else None,
        "trainingDirectory": training,
        "tensorboard": {"enabled": False},
        # Fields that a TFJob omits have the defaults of the image, the node or Kubernetes, not those of the chart.
        "common": {
            "labels": labels.of_job(label, referred),
            "resources": None,
            "podSecurityContext": None,
            "securityContext": None,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
        },
        **{
            role: _stated(tasks.get(role, {"replicas": 0}))
            for role in ROLES
            if role in tasks or role in ("worker", "ps")
        },
        "extraObjects": [extra_objects.verbatim(item) for item in extra],
    }
    if "chief" in replicas and replicas["chief"].key.lower() == "master":
        values["chief"] = {"taskType": "master", **values["chief"]}
    return Conversion(name, namespace, {key: value for key, value in values.items() if not is_empty(value)}, notes)


def _identity(metadata: Fields, own_labels: Fields) -> tuple[str, str, str]:
    """The job's name, cut to the length that the chart allows; its namespace; and its name as a label."""
    name = metadata.text("name") or metadata.text("generateName").rstrip("-")
    if not name:
        raise ConfigurationError(f"{metadata.at('name')}: it is missing; set the job's name, such as mnist.")
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        words = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        better = words if words[:1].isalpha() else f"job-{words}".rstrip("-")
        raise ConfigurationError(
            f"{metadata.at('name')}: {name!r} is not valid in the names of the run's Services; use small letters, "
            f"digits and dashes, and start with a letter, such as {better}."
        )
    metadata.take("generateName")
    if len(name) > 40:
        metadata.note("name", f"cut to {name[:40].rstrip('-')}; the names of a release have 40 characters at most.")
    namespace = metadata.text("namespace")
    for key in WRITTEN_BY_THE_CLUSTER:
        metadata.take(key)
    annotations = metadata.inner("annotations")
    annotations.take(LAST_APPLIED)
    for part in (own_labels, annotations):
        close(part, "not carried over; it is on the TFJob, not on its pods.")
    close(metadata)
    short = name[:40].rstrip("-")
    return short, namespace, name if len(name) <= labels.MAXIMUM_LENGTH else short


def _types(replica_specs: Fields) -> dict[Role, str]:
    """The TFJob's replica type for each of its roles, in the chart's order."""
    found: dict[Role, str] = {}
    for key in replica_specs.content:
        role = to_role(key)
        if role in found:
            raise ConfigurationError(f"{replica_specs.path}: {found[role]} and {key} are the same role.")
        if role:
            found[role] = key
        elif similar := difflib.get_close_matches(key.lower(), REPLICA_TYPES, n=1):
            raise ConfigurationError(
                f"{replica_specs.at(key)}: no role has this name; did you mean {REPLICA_TYPES[similar[0]]}?"
            )
    return {role: found[role] for role in ROLES if role in found}


def _replicas(replica_specs: Fields, programs: Mapping[Role, Program]) -> dict[Role, Replica]:
    """The TFJob's replica types by role, in the chart's order."""
    types = _types(replica_specs)
    for role in programs:
        if role not in types:
            raise ConfigurationError(f"--entrypoint: one was given for {role}, but the TFJob has no such role.")
    replicas: dict[Role, Replica] = {}
    for role, key in types.items():
        part = replica_specs.inner(key)
        replicas[role] = convert_replica(role, key, part, programs.get(role))
        close(part)
    close(replica_specs, "not carried over; the roles are Chief (or Master), Worker, PS and Evaluator.")
    missing = [role for role, item in replicas.items() if item.values["replicas"] and not item.values["command"]]
    if missing:
        paths = ", ".join(f"{replica_specs.at(types[role])}…containers[{CONTAINER}].command" for role in missing)
        options = " ".join(f'--entrypoint {role}="python -m x"' for role in missing)
        if set(missing) <= programs.keys():
            raise ConfigurationError(
                f"{paths}: there is none, the image has no entrypoint, and there are no args, so nothing runs; set the "
                f"command in the TFJob, or state it as in {options}."
            )
        raise ConfigurationError(
            f"{paths}: there is none, so the image's own entrypoint runs, which the chart's wrapper hides; --inspect "
            f'reads it from the image, or state it as in {options}, or as in --entrypoint {missing[0]}="" if the '
            "image has none and the args are the command."
        )
    return replicas


def _leader(replica_specs: Fields, tasks: Mapping[Role, Map]) -> Role:
    """The role with which the run ends."""
    leader: Role = "chief" if tasks.get("chief", {}).get("replicas") else "worker"
    if not tasks.get(leader, {}).get("replicas"):
        unknown = ", ".join(key for key in replica_specs.content if not to_role(key))
        other = f", and {unknown} is not a role" if unknown else ""
        raise ConfigurationError(
            f"{replica_specs.path}: there is no Worker and no Chief{other}, so no task trains; add one."
        )
    return leader


def _let_the_run_end(replica_specs: Fields, leader: Replica) -> None:
    if leader.values["restartPolicy"] == "Always":
        text = "its restartPolicy Always, with which the run would never end, is not carried over; it is OnFailure."
        replica_specs.note(leader.key, text)
        leader.values["restartPolicy"] = "OnFailure"


def _common_port(replica_specs: Fields, replicas: Mapping[Role, Replica], leader: Role) -> int:
    """The port of all tasks: the leader's."""
    port = replicas[leader].port or PORT
    for item in replicas.values():
        if item.port not in (None, port):
            text = f"its port {item.port} is not carried over; all tasks have {leader}'s, {port}."
            replica_specs.note(item.key, text)
    on_hosts = [item for item in replicas.values() if item.values["hostNetwork"] and item.values["replicas"]]
    if len({item.port or PORT for item in on_hosts}) > 1:
        ports = ", ".join(f"{item.key} {item.port or PORT}" for item in on_hosts)
        replica_specs.notes.append(
            f"{replica_specs.path}: hostNetwork is carried over, but all tasks have one port, so that a node runs only "
            f"one of them; with the TFJob's ports ({ports}), roles can share a node."
        )
    return port


def _add_labels(replicas: Mapping[Role, Replica]) -> set[str]:
    """Add the operator's labels to the roles, and return the names of the labels that the job refers to."""
    referred = {name for item in replicas.values() for name in item.referred}
    for role, item in replicas.items():
        own = labels.of_role(item.key, role == "chief", referred)
        item.values["labels"] = {**own, **item.values["labels"]}
    roles = {name for name in referred if labels.FORMER.get(name, name) == labels.JOB_ROLE}
    for item in replicas.values():
        if roles & item.referred and "chief" not in replicas:
            item.template.note(
                "spec",
                f"refers to the label {labels.JOB_ROLE}, which no pod has; TFJob gives it to worker 0 alone, whose "
                f'labels here are {labels.REPLICA_TYPE}: worker and {labels.POD_INDEX}: "0".',
            )
    return referred


def _stated(task: Map) -> Map:
    """The keys of a role that are not empty."""
    meaningful_as_0 = ("replicas", "terminationGracePeriodSeconds")
    return {key: value for key, value in task.items() if value or (key in meaningful_as_0 and value is not None)}


def to_yaml(conversion: Conversion) -> str:
    """The values file, with instructions in a comment at its top."""
    training = conversion.values["trainingDirectory"]
    claim, path = training.get("existingClaim"), training.get("path", volumes.TRAINING_PATH)
    directory = f"The training directory is the claim {claim}, which all its tasks mount at {path}." if claim else ""
    namespace = f" --namespace {conversion.namespace}" if conversion.namespace else ""
    lines = [
        f"The TFJob {conversion.name} as values, by `trainer convert-tfjob`. Under the job's name, the release's",
        f"pods are called as before: {conversion.name}-worker-0 and so on. So delete the TFJob first.",
        "",
        f"  helm install {conversion.name} charts/distributed-tensorflow{namespace} --values THIS-FILE \\",
        "    --set image.registry=REGISTRY",
        "",
        "REGISTRY is where `make push-images` put the packaged images; the supervisor needs one of them.",
        f"A TFJob has no TensorBoard, so there is none here. {directory}",
    ]
    comment = "".join(" ".join(f"# {line}".splitlines()).rstrip() + "\n" for line in lines)
    return f"{comment}\n{dump(conversion.values)}"
