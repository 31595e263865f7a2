"""The labels that the operator gives a TFJob's pods, and the references of the pods to them.

Pure. A converted pod gets the labels that are constant in a role: the names of job and operator, the replica type and
the role of the master. The StatefulSet controller sets the index, under another name, so references to it are renamed.

Source: pkg/apis/kubeflow.org/v1/common_types.go and pkg/controller.v1/common/pod.go of
https://github.com/kubeflow/training-operator, release-1.9; the former names are those of its branches up to v1.5.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

PREFIX = "training.kubeflow.org/"
JOB_NAME = f"{PREFIX}job-name"
OPERATOR_NAME = f"{PREFIX}operator-name"
REPLICA_TYPE = f"{PREFIX}replica-type"
REPLICA_INDEX = f"{PREFIX}replica-index"
JOB_ROLE = f"{PREFIX}job-role"
ALL = (JOB_NAME, OPERATOR_NAME, REPLICA_TYPE, REPLICA_INDEX, JOB_ROLE)
MAXIMUM_LENGTH = 63
"""The longest value of a label."""

GROUP_NAMES = ("group-name", "group_name")
FORMER = {
    "job-name": JOB_NAME,
    "tf-job-name": JOB_NAME,
    "tf_job_name": JOB_NAME,
    "replica-type": REPLICA_TYPE,
    "tf-replica-type": REPLICA_TYPE,
    "job-role": JOB_ROLE,
}
"""Former names, which pods get only if the TFJob refers to them. GROUP_NAMES have no present name."""

POD_INDEX = "apps.kubernetes.io/pod-index"
"""The label in which the StatefulSet controller writes the index of a pod, since Kubernetes 1.28."""
RENAMED = dict.fromkeys((REPLICA_INDEX, "replica-index", "tf-replica-index"), POD_INDEX)


def of_job(name: str, referred: set[str]) -> dict[str, str]:
    """The labels of all pods of a job, with the former ones that it refers to."""
    group = {key: "kubeflow.org" for key in GROUP_NAMES if key in referred}
    return {**_with_former({JOB_NAME: name, OPERATOR_NAME: "tfjob-controller"}, referred), **group}


def of_role(replica_type: str, is_master: bool, referred: set[str]) -> dict[str, str]:
    """The labels of the pods of a role, with the former ones that the job refers to."""
    role = {JOB_ROLE: "master"} if is_master else {}
    return _with_former({REPLICA_TYPE: replica_type.lower(), **role}, referred)


def _with_former(labels: Mapping[str, str], referred: set[str]) -> dict[str, str]:
    former = {name: labels[now] for name, now in FORMER.items() if name in referred and now in labels}
    return {**labels, **former}


def rename(part: Any, referred: set[str]) -> Any:
    """A copy of a part of a pod whose references to an index name POD_INDEX.

    Args:
        part: Any part of a pod's spec.
        referred: Gets the names of all labels that the part refers to in a fieldRef or a label selector.
    """

    def renamed(name: str) -> str:
        referred.add(name)
        return RENAMED.get(name, name)

    return _rename(part, renamed)


def _rename(part: Any, renamed: Callable[[str], str]) -> Any:
    if isinstance(part, list):
        return [_rename(item, renamed) for item in part]
    if not isinstance(part, dict):
        return part
    copy = {key: _rename(value, renamed) for key, value in part.items()}
    path = copy.get("fieldPath")
    if isinstance(path, str) and (found := re.fullmatch(r"metadata\.labels\['(.+)'\]", path)):
        copy["fieldPath"] = f"metadata.labels['{renamed(found[1])}']"
    if isinstance(copy.get("labelSelector"), dict):
        copy["labelSelector"] = _rename_selector(copy["labelSelector"], renamed)
    for key in ("matchLabelKeys", "mismatchLabelKeys"):
        if isinstance(copy.get(key), list):
            copy[key] = [renamed(name) if isinstance(name, str) else name for name in copy[key]]
    return copy


def _rename_selector(selector: Mapping[str, Any], renamed: Callable[[str], str]) -> dict[str, Any]:
    copy = dict(selector)
    if isinstance(copy.get("matchLabels"), dict):
        copy["matchLabels"] = {renamed(name): value for name, value in copy["matchLabels"].items()}
    if isinstance(copy.get("matchExpressions"), list):
        copy["matchExpressions"] = [
            {**item, "key": renamed(item["key"])}
            if isinstance(item, dict) and isinstance(item.get("key"), str)
            else item
            for item in copy["matchExpressions"]
        ]
    return copy
