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
from typing import get_args

from trainer.cluster.spec import ALIASES, ROLES, Role
from trainer.errors import ConfigurationError
from trainer.tfjob.manifest import Fields, Map, dump, fields, is_empty, load, shorten

API_VERSION = "kubeflow.org/v1"
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
    "automountServiceAccountToken": "not carried over; the chart mounts no service account token; a projected "
    "volume in extraVolumes can provide one.",
    "enableServiceLinks": "not carried over; the chart sets no environment variables for other Services.",
    "nodeName": "not carried over; use nodeSelector with kubernetes.io/hostname.",
    "restartPolicy": "not carried over; TFJob ignores it too, and uses the restartPolicy beside the template.",
    "schedulingPolicy": "not carried over; the chart creates no pod group; roles have schedulerName.",
    "managedBy": "not carried over; only Helm manages a release.",
    "enableDynamicWorker": "not carried over; set worker.maxReplicas to the maximum number of workers, which TF_CONFIG "
    "then lists; TFJob lists only the worker itself and the parameter servers.",
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


def _close(part: Fields, otherwise: str = NO_KEY) -> None:
    part.close(REASONS, otherwise)


def parse_entrypoints(words: Iterable[str]) -> dict[Role, list[str]]:
    """The entrypoints from `--entrypoint ROLE="WORD …"`, by role.

    Raises:
        ConfigurationError: an option has no valid role or no words.
    """
    found: dict[Role, list[str]] = {}
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
        found[role] = command
    return found


def _role(name: str) -> Role | None:
    """The role of a replica type. TFJob ignores its case."""
    role = ALIASES.get(name.lower(), name.lower())
    return next((known for known in get_args(Role) if known == role), None)


def parse(text: str, origin: str) -> Map:
    """The TFJob in a manifest, YAML or JSON.

    Args:
        text: The manifest.
        origin: The manifest's name in errors, such as the file's name.

    Raises:
        ConfigurationError: the text is not YAML, or is not exactly one TFJob of kubeflow.org/v1.
    """
    found = load(text, origin)
    if len(found) != 1:
        count = f"{len(found)} documents" if found else "nothing"
        raise ConfigurationError(f"{origin} holds {count}, and one TFJob was expected.")
    (job,) = found
    kind, version = (job.get("kind"), job.get("apiVersion")) if isinstance(job, dict) else (None, None)
    if kind in ("List", "TFJobList"):
        raise ConfigurationError(
            f"{origin} holds a list, and one TFJob was expected; `kubectl get tfjob NAME --output=yaml` prints one."
        )
    if kind != "TFJob":
        raise ConfigurationError(f"{origin}: kind: TFJob was expected, not {shorten(kind)}.")
    if version != API_VERSION:
        raise ConfigurationError(
            f"{origin}: apiVersion: {API_VERSION} was expected, not {shorten(version)}; rewrite the TFJob for "
            f"{API_VERSION}, whose roles are in spec.tfReplicaSpecs."
        )
    return dict(job)


def convert(job: Map, entrypoints: Mapping[Role, Sequence[str]]) -> Conversion:
    """The values with which the chart runs the same job as a TFJob.

    Args:
        job: The TFJob, from `parse`.
        entrypoints: The image's entrypoint for each role whose container has no command.

    Raises:
        ConfigurationError: the TFJob cannot run, a command is missing, or an entrypoint is not needed.
    """
    notes: list[str] = []
    top = fields("", json.loads(json.dumps(job)), notes)  # a copy without shared parts
    for key in ("apiVersion", "kind", "status"):
        top.take(key)
    name, namespace = _identity(top.inner("metadata"))
    spec = top.inner("spec")
    replica_specs = spec.inner("tfReplicaSpecs")
    types = _types(replica_specs)
    for role in entrypoints:
        if role not in types:
            raise ConfigurationError(f"--entrypoint: one was given for {role}, but the TFJob has no such role.")
    tasks: dict[Role, Map] = {}
    ports: dict[Role, int] = {}
    for role, key in types.items():
        replica = replica_specs.inner(key)
        tasks[role], ports[role] = _task(role, replica, entrypoints.get(role, ()))
        _close(replica)
    _close(replica_specs, "not carried over; the roles are Chief (or Master), Worker, PS and Evaluator.")
    _check_commands(replica_specs, types, tasks)
    leader: Role = "chief" if tasks.get("chief", {}).get("replicas") else "worker"
    if not tasks.get(leader, {}).get("replicas"):
        raise ConfigurationError(f"{replica_specs.path}: there is no Worker and no Chief, so no task trains; add one.")
    if sum(task["replicas"] for task in tasks.values()) == 1:
        notes.append(f"{replica_specs.path}: one task in all, to which TFJob gives no TF_CONFIG; the chart gives one.")
    for role, port in ports.items():
        if port != ports[leader]:
            text = f"its port {port} is not carried over; all tasks have {leader}'s, {ports[leader]}."
            replica_specs.note(types[role], text)
    run = _run(spec, leader)
    if tasks[leader]["restartPolicy"] == "Always":
        text = "its restartPolicy Always, with which the run would never end, is not carried over; it is OnFailure."
        replica_specs.note(types[leader], text)
        tasks[leader]["restartPolicy"] = "OnFailure"
    _close(spec)
    _close(top)
    gpu = _gpu_name(tasks)
    for role, task in tasks.items():
        if role != "ps":  # the chart has no ps.gpus, so the GPUs stay in the resources
            _take_gpus(task, gpu)
        task["resources"] = {key: value for key, value in task["resources"].items() if value}
    for role, key in types.items():
        if reasons := _restricted_violations(tasks[role]):
            refused = 'a namespace that enforces Pod Security "restricted" refuses these pods'
            replica_specs.note(key, f"{refused}: {', '.join(reasons)}.")
    values: Map = {
        "run": run,
        "supervisor": {"enabled": True},  # replaces the operator, without which no run ends
        "port": ports[leader] if ports[leader] != PORT else None,
        "portName": PORT_NAME,
        "gpu": {"resourceName": gpu} if gpu != NVIDIA else None,
        "trainingDirectory": _training_directory(list(tasks.values())),
        "tensorboard": {"enabled": False},
        # Fields that a TFJob omits have the defaults of the image, the node or Kubernetes, not those of the chart.
        "common": {
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
    }
    if types.get("chief", "").lower() == "master":
        values["chief"] = {"taskType": "master", **values["chief"]}
    return Conversion(name, namespace, {key: value for key, value in values.items() if not is_empty(value)}, notes)


def _identity(metadata: Fields) -> tuple[str, str]:
    """The job's name, cut to the length that the chart allows, and its namespace."""
    name = metadata.text("name") or metadata.text("generateName").rstrip("-")
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
    return name[:40].rstrip("-"), namespace


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


def _check_commands(replica_specs: Fields, types: Mapping[Role, str], tasks: Mapping[Role, Map]) -> None:
    missing = [role for role in types if tasks[role]["replicas"] and not tasks[role]["command"]]
    if missing:
        paths = ", ".join(f"{replica_specs.at(types[role])}…containers[{CONTAINER}].command" for role in missing)
        options = " ".join(f'--entrypoint {role}="python -m x"' for role in missing)
        raise ConfigurationError(
            f"{paths}: there is none, so the image's own entrypoint runs, which the chart's wrapper hides; state it "
            f"as in {options} (`docker image inspect -f '{{{{.Config.Entrypoint}}}} {{{{.Config.Cmd}}}}' IMAGE` says)."
        )


def _run(spec: Fields, leader: Role) -> Map:
    """The chart's `run`, without defaults."""
    policy = spec.inner("runPolicy")
    place = {key: policy if key in policy.content else spec for key in RUN_POLICY}
    backoff = place["backoffLimit"].whole("backoffLimit")
    clean = place["cleanPodPolicy"].one_of("cleanPodPolicy", ("All", "Running", "None"))
    if clean == "None":
        place["cleanPodPolicy"].note(
            "cleanPodPolicy",
            "carried over; ended tasks stay parked in their pods and keep their GPUs until `helm uninstall`.",
        )
    success = spec.one_of("successPolicy", ("Default", "AllWorkers"))
    if success == "AllWorkers" and leader == "chief":
        spec.note("successPolicy", "not carried over; TFJob too lets the chief decide where there is one.")
        success = ""
    run = {
        "successPolicy": success if success == "AllWorkers" else None,
        **{key: place[key].whole(key) for key in ("activeDeadlineSeconds", "ttlSecondsAfterFinished")},
        "cleanPodPolicy": clean if clean != "All" else None,
        "suspend": place["suspend"].take("suspend") is True,
    }
    _close(policy)
    stated = {key: value for key, value in run.items() if not is_empty(value)}
    # TFJob has no limit by default. The chart has one, and null disables it.
    return stated if backoff == 6 else {"backoffLimit": backoff, **stated}


def _task(role: Role, replica: Fields, entrypoint: Sequence[str]) -> tuple[Map, int]:
    """The keys of a role, and its port."""
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
    pod = template.inner("spec")
    containers = pod.items("containers", "name")
    sidecars = [item for item in containers if item.get("name") != CONTAINER]
    own = [item for item in containers if item.get("name") == CONTAINER]
    if not own:
        raise ConfigurationError(f"{pod.at('containers')}: there is no container named {CONTAINER}.")
    container = fields(f"{pod.at('containers')}[{CONTAINER}]", own[0], replica.notes)
    container.take("name")
    initial = pod.items("initContainers", "name")
    for item in (*initial, *sidecars):
        if item.get("name") == role:
            raise ConfigurationError(
                f"{pod.path}: a container besides {CONTAINER} is named {role}, as the chart names its own; rename it."
            )
    command = container.words("command")
    if command and entrypoint:
        raise ConfigurationError(f"--entrypoint: one was given for {role}, whose command is in the TFJob.")
    command = command or list(entrypoint)
    directory = container.text("workingDir")
    if directory and command:
        command = ["sh", "-c", f'cd {shlex.quote(directory)} && exec "$@"', "sh", *command]
    port = _port(container)
    resources = container.inner("resources")
    grace = pod.whole("terminationGracePeriodSeconds")
    task = {
        "replicas": replicas,
        "gpus": 0,
        "image": _image(container),
        "command": [_literal(word) for word in command],
        "args": [_literal(word) for word in container.words("args")],
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
        "serviceAccount": {"name": account} if (account := _service_account(pod)) else None,
    }
    _resolve_volume_conflicts(task, pod, container)
    for key in ("affinity", "topologySpreadConstraints"):
        if "kubeflow.org/" in json.dumps(task[key]):
            pod.note(
                key,
                "carried over, but the chart's pods lack TFJob's labels: app.kubernetes.io/instance is the release, "
                "app.kubernetes.io/component the role.",
            )
    for part in (container, pod, metadata, template):
        _close(part)
    return task, port


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


def _port(container: Fields) -> int:
    """The port of the tasks. TFJob adds it if no port has its name."""
    port = PORT
    for item in container.items("ports"):
        number = item.get("containerPort")
        entry = fields(f"{container.at('ports')}[{item.get('name', number)}]", item, container.notes)
        if item.get("name") == PORT_NAME:
            port = entry.whole("containerPort") or PORT
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
    return {
        name: value
        for name, value in given.content.items()
        if name not in given.taken and INJECTION_OFF.get(name) != value
    }


def _service_account(pod: Fields) -> str:
    names = [pod.text("serviceAccountName"), pod.text("serviceAccount")]  # the second is the old spelling
    name = next(filter(None, names), "")
    if name and "automountServiceAccountToken" not in pod.content:
        pod.note(
            "serviceAccountName", "carried over, but not its token; a projected volume in extraVolumes can hold one."
        )
    return name


def _resolve_volume_conflicts(task: Map, pod: Fields, container: Fields) -> None:
    """Resolve conflicts with the chart's volumes: rename volumes of the same name, drop mounts at the scratch paths."""
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
    found = ["hostNetwork"] if task["hostNetwork"] else []
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
