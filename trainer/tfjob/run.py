"""The run policy of a TFJob as the chart's `run`."""

from trainer.cluster.spec import Role
from trainer.tfjob.manifest import Fields, Map, is_empty

RUN_POLICY = ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "cleanPodPolicy", "suspend")
"""Fields of spec.runPolicy, and keys of the chart's `run`. The first TFJobs of v1 have them in spec."""


def place_of(key: str, spec: Fields, policy: Fields) -> Fields:
    """Where a field of spec.runPolicy is: there, or in spec as in the first TFJobs of v1."""
    return spec if key in spec.content and key not in policy.content else policy


def convert_run(spec: Fields, policy: Fields, leader: Role) -> Map:
    """The chart's `run`. Where a TFJob has no limit by default and the chart has one, null disables it."""
    place = {key: place_of(key, spec, policy) for key in RUN_POLICY}
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
