"""Why a task does not run, in one sentence with the remedy, from the message that Kubernetes reports. Pure."""

import functools
import re
from collections.abc import Sequence

from trainer.text import truncate

PART_OF_GANG = "the free nodes hold only a part of them: wait, ask for less, or add nodes"
"""Why a task of a gang waits that alone would have a node."""

_DIAGNOSES: Sequence[tuple[str, str]] = (
    (
        r"didn't match Pod's node affinity/selector",
        "no node has the labels that {role}.nodeSelector, {role}.affinity or scheduling.topologyKey asks for",
    ),
    (
        r"didn't match pod affinity rules",
        "it must share the node of the training directory, or the domain of scheduling.placement, which has no room: "
        "use ReadWriteMany, chief.replicas: 1, or another placement",
    ),
    (
        r"anti-affinity rules",
        "it may share no node or domain with what is there ({role}.affinity, or scheduling.placement: exclusive): "
        "wait for the end of another run, or add a node",
    ),
    (
        r"topology spread constraints \(missing required label\)",
        "no node with room has the label of {role}.topologySpreadConstraints: label the nodes, or correct the key",
    ),
    (
        r"topology spread constraints",
        "its role cannot be spread evenly ({role}.topologySpreadConstraints): add a node where there are the fewest of "
        "its tasks, or relax the rule",
    ),
    (
        r"volume node affinity conflict",
        "its claim's volume is on a node or in a zone where it cannot run: free a node there, or use another claim",
    ),
    (
        r"didn't have free ports",
        "its port is in use on every node, as by hostNetwork: choose another port and metrics.port, or add a node",
    ),
    # After the other reasons about nodes: nodes of the control plane have a taint in most clusters.
    (
        r"untolerated taint \{(?P<what>[^:}}]+)",
        "the remaining nodes have the taint {what}: tolerate it in {role}.tolerations, or add a node",
    ),
    (
        r"pod group .* to appear in scheduling queue",
        "its PodGroup does not exist: complete the installation with `helm upgrade`",
    ),
    (r"waiting for minCount pods", "not all of their pods exist yet"),
    (r"minCount \(\d+\) (cannot be|is not yet) satisfied", PART_OF_GANG),
    (
        r"persistentvolumeclaim \"(?P<what>[^\"]+)\" not found",
        "the claim {what} does not exist: `helm upgrade` creates it if it is the release's own; else create it, or "
        "correct existingClaim",
    ),
    (
        r"persistentvolumeclaim \"(?P<what>[^\"]+)\" is being deleted",
        "the claim {what} is being deleted: when it is gone, `helm upgrade` creates an empty one if it is the "
        "release's own",
    ),
    (
        r"unbound (immediate )?PersistentVolumeClaims",
        "its claim is not bound: `kubectl describe pvc` shows why, such as a storage class that does not exist",
    ),
    (
        r"absent: (?P<what>.*)",
        "{what} does not exist: complete the installation with `helm upgrade`",
    ),
    (
        r"not created: (?P<what>.*)",
        "the supervisor could not create the Job {what}: a line above says why the Kubernetes API refuses it",
    ),
    (
        r"another run: (?P<what>.*)",
        "its pod has the values of another upgrade: complete or roll back that upgrade, then run `kubectl delete pod "
        "{what}`",
    ),
    (
        r"lost node: (?P<what>.*)",
        "its pod should have ended, but the node {what} does not answer: repair it, delete it with `kubectl delete "
        "node {what}`, or set run.nodeLossSeconds",
    ),
    (
        r"ErrImageNeverPull.*?image \"?(?P<what>[^\s\"]+)",
        "the image {what} is not on the node, and its pull policy is Never, the default without image.registry: load "
        "it onto each node, or push it and set image.registry",
    ),
    (
        r"(ErrImagePull|ImagePullBackOff|InvalidImageName).*?image \"?(?P<what>[^\s\"]+)",
        "the image {what} cannot be pulled: push it, and set image.registry, {role}.image or imagePullSecrets",
    ),
    (
        r"(ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull)",
        "its image cannot be pulled: push it, and set image.registry, {role}.image or imagePullSecrets",
    ),
    (
        r"CreateContainerConfigError: (?P<what>.*)",
        "its container refers to an object that is absent ({what}): create it, or correct {role}.env or {role}.envFrom",
    ),
    (
        r"(CreateContainerError|RunContainerError)",
        "its container cannot be created: see `kubectl describe pod`",
    ),
    (
        r"does not resolve: (?P<what>.*)",
        "the supervisor's pod cannot resolve {what}: if tasks cannot either, check that the cluster's DNS runs, that "
        "the headless Service exists, and that network policies allow DNS",
    ),
    (
        r"violates PodSecurity \\?\"(?P<what>[^\"\\\\]+)",
        "the namespace's Pod Security ({what}) refuses its pods: `kubectl get events` shows which settings they lack",
    ),
    (
        r"exceeded quota: (?P<what>[^,]+)",
        "the namespace's quota {what} is exhausted: ask for less in {role}.resources, or raise the quota",
    ),
    (
        r"CrashLoopBackOff",
        "it keeps ending, and Kubernetes waits longer before each restart: see `kubectl logs --previous`",
    ),
    (
        r"MountVolume.*configmap \"(?P<what>[^\"]+)\" not found",
        "the ConfigMap {what} does not exist: create it, or correct {role}.extraVolumes",
    ),
    (
        r"MountVolume.*secret \"(?P<what>[^\"]+)\" not found",
        "the Secret {what} does not exist: create it, or correct {role}.extraVolumes",
    ),
    (
        r"(FailedMount|FailedAttachVolume|MountVolume)",
        "a volume cannot be mounted: see `kubectl describe pod`",
    ),
)


@functools.lru_cache(maxsize=10_000)  # as for `diagnose`
def lacks_capacity(problem: str) -> bool:
    """Whether a pod waits for a node or for quota, which an autoscaler or the end of another run may give.

    Not if only its volume keeps it from the nodes that there are: that is seldom cured by waiting.

    Args:
        problem: `Pod.problem` of a pod without a node, or the message of an event about a pod that does not exist.
    """
    is_of_volume = re.search(
        r"persistentvolumeclaim|volume node affinity conflict|available persistent volumes", problem, re.IGNORECASE
    )
    is_full = re.search(r"Insufficient|exceeded quota", problem)  # such as the nodes in the volume's zone
    return bool(is_full or (re.search(r"nodes are available", problem) and not is_of_volume))


@functools.lru_cache(maxsize=10_000)  # a thousand tasks may wait for the same reason, and each pass asks for all
def diagnose(role: str, problem: str) -> str:
    """A sentence on why a pod does not run; Kubernetes' own message if no pattern matches it.

    Args:
        role: The task's role. The remedy names its values.
        problem: `Pod.problem`, or the message of an event about the pod.
    """
    if lacking := list(dict.fromkeys(re.findall(r"Insufficient ([\w./-]+\w)", problem))):
        return _insufficient(role, lacking)
    for pattern, sentence in _DIAGNOSES:
        if found := re.search(pattern, problem):
            return sentence.format(role=role, **found.groupdict())
    return truncate(" ".join(problem.split()), 300) or "Kubernetes has not reported a reason yet"


def _insufficient(role: str, resources: Sequence[str]) -> str:
    """The sentence on resources of which no node has enough left, such as cpu and nvidia.com/gpu."""
    of_devices = role != "ps" and any("/" in name for name in resources)
    keys = f"{role}.gpus" if of_devices and len(resources) == 1 else f"{role}.resources"
    if of_devices and len(resources) > 1:
        keys = f"{role}.resources and {role}.gpus"
    what = " and ".join(filter(None, [", ".join(resources[:-1]), resources[-1]]))
    return f"no node has enough {what} left: ask for less in {keys}, or add a node"
