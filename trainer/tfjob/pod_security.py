"""What Pod Security "restricted" refuses of a TFJob's pods.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Mapping

from trainer.cluster.spec import Role
from trainer.tfjob.manifest import Fields, Map, fields
from trainer.tfjob.replica import Replica

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


def note_restricted(replica_specs: Fields, replicas: Mapping[Role, Replica]) -> None:
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
