"""Why a task does not run, in one sentence with its remedy: Kubernetes' words in, ours out. Pure."""

import re
from collections.abc import Sequence

_KNOWN: Sequence[tuple[str, str]] = (
    (
        r"Insufficient (?P<what>[\w./-]+\w)",
        "no node has enough {what} left: ask for less in {role}.resources or {role}.gpus, or add a node",
    ),
    (
        r"didn't match Pod's node affinity/selector",
        "no node has the labels that {role}.nodeSelector or {role}.affinity asks for",
    ),
    (
        r"didn't match pod affinity rules",
        "it must share the node of the training directory, which has no room: use ReadWriteMany, or chief.replicas: 1",
    ),
    (
        r"volume node affinity conflict",
        "its claim's volume is on a node or in a zone that it cannot run on: free a node there, or make another claim",
    ),
    (
        r"didn't have free ports",
        "every node has its port in use, as by hostNetwork: choose another port and metrics.port, or add a node",
    ),
    # Below what else is said of nodes: those of the control plane have a taint in most clusters.
    (
        r"untolerated taint \{(?P<what>[^:}}]+)",
        "the nodes that are left have the taint {what}: tolerate it in {role}.tolerations, or add a node",
    ),
    (
        r"persistentvolumeclaim \"(?P<what>[^\"]+)\" not found",
        "the claim {what} does not exist: make it, or correct existingClaim",
    ),
    (
        r"unbound (immediate )?PersistentVolumeClaims",
        "its claim is not bound: `kubectl describe pvc` says why, such as a storage class that does not exist",
    ),
    (
        r"(ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull)",
        "its image cannot be pulled: correct {role}.image or image.registry, push the image, or set imagePullSecrets",
    ),
    (
        r"CreateContainerConfigError: (?P<what>.*)",
        "something that its container refers to is absent ({what}): make it, or correct {role}.env or {role}.envFrom",
    ),
    (
        r"(CreateContainerError|RunContainerError)",
        "its container cannot be made: see `kubectl describe pod`",
    ),
    (
        r"does not resolve: (?P<what>.*)",
        "the cluster's DNS does not know {what}: see that its DNS runs and that the headless Service is there",
    ),
    (
        r"violates PodSecurity \\?\"(?P<what>[^\"\\\\]+)",
        "the namespace's Pod Security ({what}) refuses its pods: `kubectl get events` says what it misses",
    ),
    (
        r"exceeded quota: (?P<what>[^,]+)",
        "the namespace's quota {what} is used up: ask for less in {role}.resources, or have it raised",
    ),
    (
        r"CrashLoopBackOff",
        "it keeps ending, and Kubernetes waits longer each time: see `kubectl logs --previous`",
    ),
    (
        r"(FailedMount|FailedAttachVolume|MountVolume)",
        "a volume cannot be mounted: see `kubectl describe pod`",
    ),
)


def diagnose(role: str, problem: str) -> str:
    """A sentence for what Kubernetes says of a pod that does not run; Kubernetes' own words where they are not known.

    Args:
        role: The task's role, whose values the remedy names.
        problem: `Pod.problem`, or the message of an event about the pod.
    """
    for pattern, sentence in _KNOWN:
        if found := re.search(pattern, problem):
            return sentence.format(role=role, **found.groupdict())
    return " ".join(problem.split())[:300] or "Kubernetes has not said why yet"
