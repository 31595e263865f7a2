"""A replica type of a TFJob as a role of the chart."""

import re
import shlex
from dataclasses import dataclass

from trainer.cluster.spec import Role
from trainer.errors import ConfigurationError
from trainer.tfjob import labels
from trainer.tfjob.manifest import Fields, Map, fields, is_empty
from trainer.tfjob.program import Program
from trainer.tfjob.unconverted import close

CONTAINER = "tensorflow"
PORT_NAME = "tfjob-port"
GRACE_SECONDS = 30
"""The default terminationGracePeriodSeconds of Kubernetes, which also applies to a TFJob."""

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
"""The fields of a volume's mount that are strings."""
CONTAINER_FIELDS = ("readinessProbe", "livenessProbe", "startupProbe", "lifecycle")
"""Fields of a container that are keys of a role."""

PACKAGED = "distributed-tensorflow/trainer"
"""The default of `image.repository`. Only before the default does the chart put `image.registry`."""

OWN_ENVIRONMENT = (
    "TF_CONFIG",
    "TF_CLUSTER",
    "POD_INDEX",
    "TASK_DIR",
    "TASK_ENDED",
    "TASK_EXITS",
    "TASK_LOG",
    "TASK_NAME",
    "TASK_POD",
    "TASK_RUN",
    "TASK_WAITS",
)
OWN_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
"""The environment variables and labels that the chart sets itself."""

INJECTION_OFF = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
"""Labels and annotations that the chart's pods always have."""


@dataclass
class Replica:
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


def convert_replica(role: Role, key: str, replica: Fields, program: Program | None) -> Replica:
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
    container, sidecars = containers_of(pod)
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
        "image": image_of(container),
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
        close(part)
    return Replica(key, values, port, template, pod, container, referred)


def containers_of(pod: Fields) -> tuple[Fields, list[Map]]:
    """The container of the task, and the sidecars."""
    containers = pod.items("containers", "name")
    own = [item for item in containers if item.get("name") == CONTAINER]
    if not own:
        raise ConfigurationError(f"{pod.at('containers')}: there is no container named {CONTAINER}.")
    container = fields(f"{pod.at('containers')}[{CONTAINER}]", own[0], pod.notes)
    container.take("name")
    return container, [item for item in containers if item.get("name") != CONTAINER]


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


def image_of(container: Fields) -> Map:
    """The image of a container, as the parts of the chart's `image`.

    Raises:
        ConfigurationError: it is not the name of an image.
    """
    image = container.text("image")
    found = re.fullmatch(
        r"(?:((?=[^/]*[.:]|localhost/)[^/\s]+)/)?([^:@\s]+)(?::([^:@/\s]+))?(?:@(sha256:[0-9a-f]{64}))?", image
    )
    if not found:
        raise ConfigurationError(f"{container.at('image')}: the name of an image was expected, not {image!r}.")
    registry, repository, tag, digest = found.groups()
    if (registry, repository) == (None, PACKAGED):
        repository, tag = None, tag or (None if digest else "latest")
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
            close(entry)
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
