"""Convert a Kubeflow TFJob to values of the chart: the text of a manifest in, values and notes out.

Pure: `trainer.cli` reads the manifest and prints the results. Converting a field marks it as taken. A note names each
field that is not taken, so no field is dropped silently, not even an unknown one.

The semantics of a TFJob, and its defaults, are those of Kubeflow's training-operator 1.x
(https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/).
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from trainer.cluster.spec import ALIASES, ROLES, Role
from trainer.errors import ConfigurationError
from trainer.tfjob import gang_scheduling, labels
from trainer.tfjob.manifest import Fields, Map, dump, fields, is_empty, load, shorten

API_VERSION = "kubeflow.org/v1"
ALIKE = re.compile(r"kubeflow\.org/v1(alpha2|beta\d+)")
"""Former versions whose spec is that of v1 but for a few fields."""
CONTAINER = "tensorflow"
PORT_NAME = "tfjob-port"
PORT = 2222
GRACE_SECONDS = 30
"""The default terminationGracePeriodSeconds of Kubernetes, which also applies to a TFJob."""

NVIDIA = "nvidia.com/gpu"
GPU = re.compile(r"[^/]+/gpu(\.shared)?|nvidia\.com/mig-.+|gpu\.intel\.com/(i915|xe)")
"""The resource names that device plugins use for GPUs."""

RUN_POLICY = ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "cleanPodPolicy", "suspend")
"""Fields of spec.runPolicy, and keys of the chart's `run`. The first TFJobs of v1 have them in spec."""

POD = (
    "imagePullSecrets",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "schedulerName",
    "runtimeClassName",
    "hostNetwork",
    "dnsPolicy",
    "dnsConfig",
    "hostAliases",
)
"""Fields of a pod that are keys of a role."""

POD_SPEC = (
    "automountServiceAccountToken",
    "enableServiceLinks",
    "hostIPC",
    "hostPID",
    "hostUsers",
    "nodeName",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "readinessGates",
    "resourceClaims",
    "resources",
    "schedulingGates",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
)
"""Fields of a pod without a key of their own, which a role's `podSpec` adds to the pod. The chart sets the others."""
TRUE_BY_DEFAULT = ("hostUsers",)
"""Fields in which false differs from the default of the chart and of Kubernetes."""

MOUNT = ("name", "mountPath", "subPath")

CONTAINER_FIELDS = ("readinessProbe", "livenessProbe", "startupProbe", "lifecycle")
"""Fields of a container that are keys of a role."""

WRITTEN_BY_THE_CLUSTER = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
"""Fields of metadata that the cluster adds and `kubectl get` shows."""

OWN_ENVIRONMENT = ("TF_CONFIG", "TF_CLUSTER", "POD_INDEX", "TASK_DIR", "TASK_RESTART_POLICY")
OWN_VOLUMES = ("config", "task", "run", "training", "data", "scratch", "shared-memory")
OWN_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
SCRATCH_PATHS = ("/tmp", "/home/trainer")  # noqa: S108 - paths in a container
"""The environment variables, volumes, labels and mounts that the chart sets itself."""
TRAINING_PATH = "/training"
"""The default of `trainingDirectory.path`."""

INJECTION_OFF = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
"""Labels and annotations that the chart's pods always have."""

RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
"""The types of volumes that Pod Security "restricted" allows."""

NO_KEY = "not carried over; the chart has no key for it."
REASONS = {
    "activeDeadlineSeconds": "not carried over; no pod of a StatefulSet may have it; use run.activeDeadlineSeconds.",
    "hostname": "not carried over; the StatefulSet sets it.",
    "subdomain": "not carried over; the StatefulSet sets it.",
    "restartPolicy": "not carried over; TFJob ignores it too, and uses the restartPolicy beside the template.",
    "managedBy": "not carried over; only Helm manages a release.",
    "enableDynamicWorker": "not carried over; set worker.maxReplicas to the maximum number of workers, which TF_CONFIG "
    "then lists; TFJob lists only the worker itself and the parameter servers.",
    gang_scheduling.QUEUE_LABEL: "not carried over; set it in common.labels, so that Kueue admits the pods.",
}
"""Why a field is not carried over, if there is another reason than that the chart has no key for it."""


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


@dataclass(frozen=True)
class Program:
    """What an image runs."""

    entrypoint: Sequence[str]
    """The words that a container's command replaces: ENTRYPOINT in a Dockerfile."""

    arguments: Sequence[str] = ()
    """The words that a container's args replace: CMD in a Dockerfile."""


@dataclass
class _Replica:
    """A replica type of the TFJob while it is converted."""

    key: str
    """Its name in the TFJob, such as Worker."""

    values: Map
    """The values of its role."""

    port: int | None
    """The port that it states."""

    template: Fields
    pod: Fields
    container: Fields

    referred: set[str]
    """The names of the labels that its pods refer to."""


def _close(part: Fields, otherwise: str = NO_KEY) -> None:
    part.close(REASONS, otherwise)


def parse_entrypoints(words: Iterable[str]) -> dict[Role, Program]:
    """The programs from `--entrypoint ROLE="WORD …"`, by role.

    Raises:
        ConfigurationError: an option has no valid role or no words.
    """
    found: dict[Role, Program] = {}
    for word in words:
        name, _, text = word.partition("=")
        role = _role(name)
        try:
            command = shlex.split(text)
        except ValueError as error:
            raise ConfigurationError(f"--entrypoint: {word!r} cannot be split into words: {error}.") from None
        if role is None or not command:
            expected = f'ROLE="WORD …", where ROLE is one of {", ".join(ROLES)}'
            raise ConfigurationError(f"--entrypoint: {word!r} was given; {expected} was expected.")
        if role in found:
            raise ConfigurationError(f"--entrypoint: two were given for {role}.")
        found[role] = Program(command)
    return found


def _role(name: str) -> Role | None:
    """The role of a replica type. TFJob ignores its case."""
    role = ALIASES.get(name.lower(), name.lower())
    return next((known for known in get_args(Role) if known == role), None)


def parse(text: str, origin: str) -> tuple[Map, list[Map]]:
    """The TFJob in a manifest, YAML or JSON, and the manifest's other objects.

    Args:
        text: The manifest.
        origin: The manifest's name in errors, such as the file's name.

    Raises:
        ConfigurationError: the text is not YAML, or has no TFJob of kubeflow.org/v1, or several.
    """
    found = load(text, origin)
    kinds = [item.get("kind") if isinstance(item, dict) else None for item in found]
    if not found:
        raise ConfigurationError(f"{origin} holds nothing, and one TFJob was expected.")
    if "List" in kinds or "TFJobList" in kinds:
        raise ConfigurationError(
            f"{origin} holds a list, and one TFJob was expected; `kubectl get tfjob NAME --output=yaml` prints one."
        )
    jobs = [item for item, kind in zip(found, kinds, strict=True) if kind == "TFJob"]
    others = [item for item, kind in zip(found, kinds, strict=True) if kind != "TFJob"]
    if not jobs:
        raise ConfigurationError(
            f"{origin}: kind: TFJob was expected, not {' or '.join(shorten(kind) for kind in kinds)}."
        )
    if len(jobs) > 1:
        names = " and ".join(shorten(_named(item).removeprefix("TFJob ")) for item in jobs)
        raise ConfigurationError(f"{origin} holds the TFJobs {names}, and one was expected; use a file for each.")
    for item in others:
        if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("apiVersion", "kind")):
            raise ConfigurationError(f"{origin}: an object with apiVersion and kind was expected, not {shorten(item)}.")
    _check_version(jobs[0].get("apiVersion"), origin)
    return dict(jobs[0]), others


def _check_version(version: Any, origin: str) -> None:
    if version == API_VERSION:
        return
    remedy = f"write the TFJob anew for {API_VERSION}, whose roles are in spec.tfReplicaSpecs."
    if isinstance(version, str) and ALIKE.fullmatch(version):
        remedy = f"set apiVersion: {API_VERSION}, whose spec is the same but for a few fields, which a note then names."
    raise ConfigurationError(f"{origin}: apiVersion: {API_VERSION} was expected, not {shorten(version)}; {remedy}")


def _named(item: Map) -> str:
    """The kind and the name of an object."""
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return " ".join(f"{item.get('kind')} {name or ''}".split())


def images_without_command(job: Map) -> dict[Role, str]:
    """The images of the roles whose container has no command.

    Raises:
        ConfigurationError: the TFJob cannot run.
    """
    replica_specs = fields("", job, []).inner("spec").inner("tfReplicaSpecs")
    found: dict[Role, str] = {}
    for role, key in _types(replica_specs).items():
        replica = replica_specs.inner(key)
        container, _ = _containers(replica.inner("template").inner("spec"))
        if replica.whole("replicas") != 0 and not container.words("command"):
            _image(container)
            found[role] = container.text("image")
    return found


def convert(job: Map, programs: Mapping[Role, Program], others: Sequence[Map] = ()) -> Conversion:
    """The values with which the chart runs the same job as a TFJob.

    Args:
        job: The TFJob, from `parse`.
        programs: What the image runs, for each role whose container has no command.
        others: The manifest's other objects, from `parse`, which the release installs too.

    Raises:
        ConfigurationError: the TFJob cannot run, a command is missing, or a program is not needed.
    """
    notes: list[str] = []
    top = fields("", json.loads(json.dumps(job)), notes)  # a copy without shared parts
    for key in ("apiVersion", "kind", "status"):
        top.take(key)
    name, namespace, label = _identity(top.inner("metadata"))
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
    run = _run(spec, policy, leader)
    templates = [(replica.template.path, replica.values) for replica in replicas.values()]
    notes += gang_scheduling.notes(_place("schedulingPolicy", spec, policy), templates, total, others)
    for part in (policy, spec, top):
        _close(part)
    gpu = _gpu_name(tasks)
    for role, task in tasks.items():
        if role != "ps":  # the chart has no ps.gpus, so the GPUs stay in the resources
            _take_gpus(task, gpu)
        task["resources"] = {key: value for key, value in task["resources"].items() if value}
    training = _training_directory(list(tasks.values()))
    for replica in replicas.values():
        _resolve_volume_conflicts(replica)
    referred = _add_labels(replicas)
    if others:
        names = ", ".join(_named(item) for item in others)
        notes.append(
            f"{names}: carried over to extraObjects; remove there what exists already; `helm uninstall` deletes them, "
            "claims too, unless they have the annotation helm.sh/resource-policy: keep."
        )
    _note_restricted(replica_specs, replicas)
    values: Map = {
        "run": run,
        "supervisor": {"enabled": True},  # replaces the operator, without which no run ends
        "port": port if port != PORT else None,
        "portName": PORT_NAME,
        "gpu": {"resourceName": gpu} if gpu != NVIDIA else None,
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
        "extraObjects": [_verbatim(item) for item in others],
    }
    if "chief" in replicas and replicas["chief"].key.lower() == "master":
        values["chief"] = {"taskType": "master", **values["chief"]}
    return Conversion(name, namespace, {key: value for key, value in values.items() if not is_empty(value)}, notes)


def _identity(metadata: Fields) -> tuple[str, str, str]:
    """The job's name, cut to the length that the chart allows; its namespace; and its name as a label."""
    name = metadata.text("name") or metadata.text("generateName").rstrip("-")
    if not name:
        raise ConfigurationError(f"{metadata.at('name')}: it is missing; set the job's name, such as mnist.")
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise ConfigurationError(
            f"{metadata.at('name')}: {name!r} was given; small letters, digits and dashes were expected."
        )
    metadata.take("generateName")
    if len(name) > 40:
        metadata.note("name", f"cut to {name[:40].rstrip('-')}; the names of a release have 40 characters at most.")
    namespace = metadata.text("namespace")
    for key in WRITTEN_BY_THE_CLUSTER:
        metadata.take(key)
    annotations = metadata.inner("annotations")
    annotations.take("kubectl.kubernetes.io/last-applied-configuration")
    for part in (metadata.inner("labels"), annotations):
        _close(part, "not carried over; it is on the TFJob, not on its pods.")
    _close(metadata)
    short = name[:40].rstrip("-")
    return short, namespace, name if len(name) <= labels.MAXIMUM_LENGTH else short


def _types(replica_specs: Fields) -> dict[Role, str]:
    """The TFJob's replica type for each of its roles, in the chart's order."""
    found: dict[Role, str] = {}
    for key in replica_specs.content:
        role = _role(key)
        if role in found:
            raise ConfigurationError(f"{replica_specs.path}: {found[role]} and {key} are the same role.")
        if role:
            found[role] = key
    return {role: found[role] for role in ROLES if role in found}


def _replicas(replica_specs: Fields, programs: Mapping[Role, Program]) -> dict[Role, _Replica]:
    """The TFJob's replica types by role, in the chart's order."""
    types = _types(replica_specs)
    for role in programs:
        if role not in types:
            raise ConfigurationError(f"--entrypoint: one was given for {role}, but the TFJob has no such role.")
    replicas: dict[Role, _Replica] = {}
    for role, key in types.items():
        part = replica_specs.inner(key)
        replicas[role] = _replica(role, key, part, programs.get(role))
        _close(part)
    _close(replica_specs, "not carried over; the roles are Chief (or Master), Worker, PS and Evaluator.")
    missing = [role for role, item in replicas.items() if item.values["replicas"] and not item.values["command"]]
    if missing:
        paths = ", ".join(f"{replica_specs.at(types[role])}…containers[{CONTAINER}].command" for role in missing)
        options = " ".join(f'--entrypoint {role}="python -m x"' for role in missing)
        if set(missing) <= programs.keys():
            raise ConfigurationError(f"{paths}: there is none, and the image has none; state one as in {options}.")
        raise ConfigurationError(
            f"{paths}: there is none, so the image's own entrypoint runs, which the chart's wrapper hides; --inspect "
            f"reads it from the image, or state it as in {options}."
        )
    return replicas


def _leader(replica_specs: Fields, tasks: Mapping[Role, Map]) -> Role:
    """The role with which the run ends."""
    leader: Role = "chief" if tasks.get("chief", {}).get("replicas") else "worker"
    if not tasks.get(leader, {}).get("replicas"):
        raise ConfigurationError(f"{replica_specs.path}: there is no Worker and no Chief, so no task trains; add one.")
    return leader


def _let_the_run_end(replica_specs: Fields, leader: _Replica) -> None:
    if leader.values["restartPolicy"] == "Always":
        text = "its restartPolicy Always, with which the run would never end, is not carried over; it is OnFailure."
        replica_specs.note(leader.key, text)
        leader.values["restartPolicy"] = "OnFailure"


def _common_port(replica_specs: Fields, replicas: Mapping[Role, _Replica], leader: Role) -> int:
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


def _place(key: str, spec: Fields, policy: Fields) -> Fields:
    """Where a field of spec.runPolicy is: there, or in spec as in the first TFJobs of v1."""
    return spec if key in spec.content and key not in policy.content else policy


def _run(spec: Fields, policy: Fields, leader: Role) -> Map:
    """The chart's `run`. Where a TFJob has no limit by default and the chart has one, null disables it."""
    place = {key: _place(key, spec, policy) for key in RUN_POLICY}
    backoff = place["backoffLimit"].whole("backoffLimit")
    clean = place["cleanPodPolicy"].one_of("cleanPodPolicy", ("All", "Running", "None"))
    if clean != "All":
        what = "carried over" if clean else "None by default, as in TFJob"
        place["cleanPodPolicy"].note(
            "cleanPodPolicy",
            f"{what}; an ended task is parked in its pod and keeps its resources, GPUs too, until `helm uninstall`; "
            "run.cleanPodPolicy: All frees them at the end of the run.",
        )
    success = spec.one_of("successPolicy", ("Default", "AllWorkers"))
    if success == "AllWorkers" and leader == "chief":
        spec.note("successPolicy", "not carried over; TFJob too lets the chief decide where there is one.")
        success = ""
    run = {
        "successPolicy": success if success == "AllWorkers" else None,
        **{key: place[key].whole(key) for key in ("activeDeadlineSeconds", "ttlSecondsAfterFinished")},
        "cleanPodPolicy": clean if clean else "None",
        "suspend": place["suspend"].take("suspend") is True,
    }
    if clean == "All":
        del run["cleanPodPolicy"]
    limits: Map = {"backoffLimit": backoff} if backoff != 6 else {}
    return {**limits, "startTimeoutSeconds": None, **{key: value for key, value in run.items() if not is_empty(value)}}


def _containers(pod: Fields) -> tuple[Fields, list[Map]]:
    """The container of the task, and the sidecars."""
    containers = pod.items("containers", "name")
    own = [item for item in containers if item.get("name") == CONTAINER]
    if not own:
        raise ConfigurationError(f"{pod.at('containers')}: there is no container named {CONTAINER}.")
    container = fields(f"{pod.at('containers')}[{CONTAINER}]", own[0], pod.notes)
    container.take("name")
    return container, [item for item in containers if item.get("name") != CONTAINER]


def _replica(role: Role, key: str, replica: Fields, program: Program | None) -> _Replica:
    """A replica type, with the keys of its role."""
    replicas = replica.whole("replicas")
    if replicas is None:
        replicas = 1
    if replicas > 1 and role in ("chief", "evaluator"):
        replica.note("replicas", f"{replicas} are not carried over; the chart runs one {role}.")
        replicas = 1
    restart = replica.one_of("restartPolicy", ("Never", "OnFailure", "Always", "ExitCode")) or "Never"
    template = replica.inner("template")
    metadata = template.inner("metadata")
    metadata.take("creationTimestamp")
    referred: set[str] = set()
    pod = fields(template.at("spec"), labels.rename(template.take("spec"), referred), replica.notes)
    container, sidecars = _containers(pod)
    initial = pod.items("initContainers", "name")
    for item in (*initial, *sidecars):
        if item.get("name") == role:
            raise ConfigurationError(
                f"{pod.path}: a container besides {CONTAINER} is named {role}, as the chart names its own; rename it."
            )
    command, arguments = _command(role, container, program)
    port = _port(container)
    resources = container.inner("resources")
    grace = pod.whole("terminationGracePeriodSeconds")
    values = {
        "replicas": replicas,
        "gpus": 0,
        "image": _image(container),
        "command": [_literal(word) for word in command],
        "args": [_literal(word) for word in arguments],
        "restartPolicy": restart if restart != "ExitCode" else None,
        "env": _environment(container),
        "envFrom": container.items("envFrom"),
        "resources": {**resources.content, **{key: resources.inner(key).content for key in ("limits", "requests")}},
        **{key: pod.take(key) for key in POD},
        "labels": _metadata(metadata, "labels"),
        "annotations": _metadata(metadata, "annotations"),
        "podSecurityContext": pod.inner("securityContext").content,
        "securityContext": container.inner("securityContext").content,
        "terminationGracePeriodSeconds": grace if grace != GRACE_SECONDS else None,
        "initContainers": initial,
        "sidecars": sidecars,
        "extraVolumes": pod.items("volumes", "name"),
        "extraVolumeMounts": container.items("volumeMounts", *MOUNT),
        **{key: container.take(key) for key in CONTAINER_FIELDS},
        "serviceAccount": {"name": account} if (account := _service_account(role, pod)) else None,
        "podSpec": _pod_spec(pod),
    }
    for part in (container, pod, metadata, template):
        _close(part)
    return _Replica(key, values, port, template, pod, container, referred)


def _command(role: Role, container: Fields, program: Program | None) -> tuple[list[str], list[str]]:
    """The command and the arguments, as Kubernetes combines those of the container and of the image."""
    command, arguments = container.words("command"), container.words("args")
    if command and program:
        raise ConfigurationError(f"--entrypoint: one was given for {role}, whose command is in the TFJob.")
    if program:
        command, arguments = list(program.entrypoint), arguments or list(program.arguments)
        if not command:
            command, arguments = arguments, []
    directory = container.text("workingDir")
    if directory and command:
        command = ["sh", "-c", f'cd {shlex.quote(directory)} && exec "$@"', "sh", *command]
    return command, arguments


def _pod_spec(pod: Fields) -> Map:
    """The fields of a pod that have no key of their own, unless they have the default."""
    found = {key: pod.take(key) for key in POD_SPEC}
    return {
        key: value for key, value in found.items() if not is_empty(value) or (value is False and key in TRUE_BY_DEFAULT)
    }


def _image(container: Fields) -> Map:
    image = container.text("image")
    found = re.fullmatch(
        r"(?:((?=[^/]*[.:]|localhost/)[^/\s]+)/)?([^:@\s]+)(?::([^:@/\s]+))?(?:@(sha256:[0-9a-f]{64}))?", image
    )
    if not found:
        raise ConfigurationError(f"{container.at('image')}: the name of an image was expected, not {image!r}.")
    registry, repository, tag, digest = found.groups()
    policy = container.one_of("imagePullPolicy", ("Always", "IfNotPresent", "Never"))
    if not policy and not digest and tag in (None, "latest"):
        policy = "Always"  # the default of Kubernetes for a tag that may change
    policy = "" if policy == "IfNotPresent" else policy
    parts = {"registry": registry, "repository": repository, "tag": tag, "digest": digest, "pullPolicy": policy}
    return {key: value for key, value in parts.items() if value}


def _port(container: Fields) -> int | None:
    """The port of the tasks; None if no port has its name. TFJob then adds PORT."""
    port = None
    for item in container.items("ports"):
        number = item.get("containerPort")
        entry = fields(f"{container.at('ports')}[{item.get('name', number)}]", item, container.notes)
        if item.get("name") == PORT_NAME:
            port = entry.whole("containerPort")
            entry.take("name")
            if item.get("protocol") == "TCP":
                entry.take("protocol")
            _close(entry)
        else:
            container.notes.append(
                f"{entry.path}: not carried over; a pod's other ports need no naming, but networkPolicy lets only the "
                "run's own pods in."
            )
    return port


def _environment(container: Fields) -> list[Map]:
    variables = container.items("env", "name")
    for item in variables:
        if item.get("name") in OWN_ENVIRONMENT:
            container.note(f"env[{item['name']}]", "not carried over; the chart sets it itself.")
    return [item for item in variables if item.get("name") not in OWN_ENVIRONMENT]


def _literal(word: str) -> str:
    """A word of a command, with "{{" escaped, because the chart renders words as templates."""
    return word.replace("{{", '{{ "{{" }}')


def _metadata(metadata: Fields, key: str) -> Map:
    """Labels or annotations, without those that the chart's pods always have."""
    given = metadata.inner(key)
    for name in OWN_LABELS:
        if key == "labels" and name in given.content:
            given.note(name, "not carried over; the chart sets it itself.")
            given.take(name)
    for name in labels.ALL:
        if key == "labels" and name in given.content:
            given.note(name, "not carried over; TFJob overwrites it, and the conversion does too.")
            given.take(name)
    return {
        name: value
        for name, value in given.content.items()
        if name not in given.taken and INJECTION_OFF.get(name) != value
    }


def _service_account(role: Role, pod: Fields) -> str:
    names = [pod.text("serviceAccountName"), pod.text("serviceAccount")]  # the second is the old spelling
    name = next(filter(None, names), "")
    if name and "automountServiceAccountToken" not in pod.content:
        pod.note(
            "serviceAccountName",
            f"carried over, but not its token; {role}.podSpec.automountServiceAccountToken: true mounts it.",
        )
    return name


def _resolve_volume_conflicts(replica: _Replica) -> None:
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


def _gpu_name(tasks: Mapping[Role, Map]) -> str:
    """The resource that `gpus` counts, the same for all roles."""
    roles = [task for role, task in tasks.items() if role != "ps"]
    found = [name for task in roles for name in task["resources"]["limits"] if GPU.fullmatch(name)]
    return found[0] if found and NVIDIA not in found else NVIDIA


def _take_gpus(task: Map, name: str) -> None:
    """Move the GPUs of a task from its resources to `gpus`."""
    count = str(task["resources"]["limits"].get(name, ""))
    if re.fullmatch("[0-9]+", count):
        task["gpus"] = int(count)
        for amounts in (task["resources"]["limits"], task["resources"]["requests"]):
            amounts.pop(name, None)


def _training_directory(tasks: list[Map]) -> Map:
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


def _restricted_violations(task: Map) -> list[str]:
    """The rules of Pod Security "restricted" that a task's pods violate."""
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if task.get(key) or task["podSpec"].get(key)]
    found += [f"volume {item.get('name')}" for item in task["extraVolumes"] if not RESTRICTED_VOLUMES & item.keys()]
    for item in (task, *task["initContainers"], *task["sidecars"]):
        own = fields("securityContext", item.get("securityContext"), [])
        context = fields("securityContext", {**task["podSecurityContext"], **own.content}, [])
        capabilities = context.inner("capabilities")
        rules = {
            "runAsNonRoot": context.take("runAsNonRoot") is True,
            "runAsUser": context.take("runAsUser") != 0,
            "seccompProfile": context.inner("seccompProfile").take("type") in ("RuntimeDefault", "Localhost"),
            "privileged": not own.take("privileged"),
            "allowPrivilegeEscalation": own.take("allowPrivilegeEscalation") is False,
            "capabilities": "ALL" in capabilities.words("drop")
            and set(capabilities.words("add")) <= {"NET_BIND_SERVICE"},
        }
        found += [rule for rule, holds in rules.items() if not holds and rule not in found]
    return found


def _note_restricted(replica_specs: Fields, replicas: Mapping[Role, _Replica]) -> None:
    """Add a note of the roles whose pods Pod Security "restricted" refuses."""
    refused: dict[str, list[str]] = {}
    for item in replicas.values():
        if reasons := ", ".join(_restricted_violations(item.values)):
            refused.setdefault(reasons, []).append(item.key)
    if refused:
        pods = "; ".join(f"{', '.join(keys)} ({reasons})" for reasons, keys in refused.items())
        replica_specs.notes.append(
            f'{replica_specs.path}: a namespace that enforces Pod Security "restricted" refuses the pods of {pods}.'
        )


def _add_labels(replicas: Mapping[Role, _Replica]) -> set[str]:
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


def _verbatim(part: Any) -> Any:
    """A part of an object, with "{{" escaped, because the chart renders extraObjects as templates."""
    if isinstance(part, list):
        return [_verbatim(item) for item in part]
    if isinstance(part, dict):
        return {_verbatim(key): _verbatim(value) for key, value in part.items()}
    return part.replace("{{", "{{`{{`}}") if isinstance(part, str) else part


def _stated(task: Map) -> Map:
    """The keys of a role that are not empty."""
    meaningful_as_0 = ("replicas", "terminationGracePeriodSeconds")
    return {key: value for key, value in task.items() if value or (key in meaningful_as_0 and value is not None)}


def to_yaml(conversion: Conversion) -> str:
    """The values file, with instructions in a comment at its top."""
    training = conversion.values["trainingDirectory"]
    claim, path = training.get("existingClaim"), training.get("path", TRAINING_PATH)
    directory = f"The training directory is the claim {claim}, which all its tasks mount at {path}." if claim else ""
    namespace = f" --namespace {conversion.namespace}" if conversion.namespace else ""
    lines = [
        f"The TFJob {conversion.name} as values, by `trainer convert-tfjob`. Under the job's name, the release's",
        f"pods are called as before: {conversion.name}-worker-0 and so on.",
        "",
        f"  helm install {conversion.name} charts/distributed-tensorflow{namespace} --values THIS-FILE \\",
        "    --set image.registry=REGISTRY",
        "",
        "REGISTRY is where `make push-images` put the packaged images; the supervisor needs one of them.",
        f"A TFJob has no TensorBoard, so there is none here. {directory}",
    ]
    comment = "".join(" ".join(f"# {line}".splitlines()).rstrip() + "\n" for line in lines)
    return f"{comment}\n{dump(conversion.values)}"
