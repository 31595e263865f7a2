"""On which devices a replica computes, and on which the parameters are."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.cluster.spec import Cluster
from trainer.graph import devices
from trainer.mode import Mode


@dataclass(frozen=True)
class Placement:
    """On which devices a replica computes, and on which the parameters are."""

    host: str
    """The CPU of this task."""
    compute: Sequence[str]
    homes: Sequence[str]
    """Of the shards of the parameters."""
    shared: str
    """Of what all replicas know of the run."""
    learners: Sequence[int]
    """The numbers of the devices of this replica among those of all, which may have different numbers of devices."""


def place(mode: Mode, cluster: Cluster | None, gpus: int, has_tables: bool) -> Placement:
    """Place a replica with this number of GPUs; 0 computes on the CPU."""
    here = cluster.task.device if cluster else ""
    host = f"{here}/device:CPU:0"
    compute = devices.all_of(gpus, here)
    if cluster and mode.has_servers:
        homes = [f"{ps.device}/device:CPU:0" for ps in cluster.parameter_servers]
    else:  # each replica holds the parameters; tables may be larger than a GPU's memory
        homes = [host] if has_tables else compute[:1]
    learners = [mode.index + mode.replicas * number for number in range(len(compute))]
    return Placement(host, compute, homes, homes[0] if mode.has_servers else host, learners)
