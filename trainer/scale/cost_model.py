"""A model of the time of a step in a cluster of machines.

A batch costs a worker and each parameter server CPU time, of which one part is for each message and one for each byte;
and its parameters and its gradient cross the links of both. These costs come from `python -m benchmarks.step_costs`,
which fits them to real processes on one machine. Assumed are: a link of its own for each task, full duplex and
otherwise idle; parameter servers with equal parts; workers that are alike and compute all the time but for
communication; a link whose latency is small beside a step. Nobody has run a thousand workers to check it.

Asynchronous workers wait in line at the parameter servers: a closed queueing network with one station, by Schweitzer's
approximation of mean value analysis ("Approximate analysis of multiclass closed networks of queues", 1979). Synchronous
workers all read and all push at the same time, so that a parameter server's link or CPUs serve them one by one.
"""

import math
from dataclasses import dataclass

PS_CPUS, PS_LINKS = "parameter servers' CPUs", "parameter servers' links"
CHUNK_BYTES, MAX_CHUNKS = 1 << 20, 4
"""As in `trainer.shards.parameters`: asynchronous replicas read a chunk again while others are on their way."""
MAX_MESSAGE_BYTES = (1 << 31) - (1 << 20)
"""As in `trainer.graph.replica`: gRPC's limit, for each chunk."""
AVERAGED = 3
"""With local steps a round moves the parameters and two moments, as in `trainer.replication.local_sgd`."""
ERROR = "its CPU times were 13 % off in the median of 40 measured points, 40 % at most"
"""How well it fits."""


@dataclass(frozen=True)
class Costs:
    """CPU seconds for a batch: of a worker, and of one parameter server for its part."""

    worker_message: float
    """For each parameter server."""
    worker_byte: float
    """For each byte of the parameters."""
    ps_message: float
    ps_byte: float
    """For each byte of its part."""


ASYNCHRONOUS = Costs(worker_message=3.8e-4, worker_byte=1.2e-9, ps_message=2.8e-4, ps_byte=1.4e-9)
SYNCHRONOUS = Costs(worker_message=4.6e-4, worker_byte=1.3e-9, ps_message=3.7e-4, ps_byte=1.3e-9)


@dataclass(frozen=True)
class Scenario:
    """What is to run."""

    workers: int
    parameters: float
    """Bytes, as float32."""
    link: float
    """Bytes/s of each task's link in each direction."""
    step: float
    """Seconds that a worker computes for a step."""
    cpus: float
    """Of each parameter server."""
    synchronous: bool
    wire: float = 1.0
    """The bytes on the wire for each byte of parameters: 0.5 with bfloat16."""
    local_steps: int = 1


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a scenario with a number of parameter servers."""

    ps: int
    seconds: float
    """Of a worker's step."""
    busy: float
    """The share of that time in which the worker computes."""
    limit: str
    """What takes most of the rest."""


def predict(scenario: Scenario, ps: int, costs: Costs | None = None) -> Prediction:
    """Predict the time of a step; by default with the costs of the mode that were measured."""
    costs = costs or (SYNCHRONOUS if scenario.synchronous else ASYNCHRONOUS)
    parameters = scenario.parameters * (AVERAGED if scenario.local_steps > 1 else 1)
    own = costs.worker_message * ps + costs.worker_byte * parameters
    link = parameters * scenario.wire / scenario.link
    at_ps = {
        PS_CPUS: (costs.ps_message + costs.ps_byte * parameters / ps) / scenario.cpus,
        PS_LINKS: link / ps,
    }
    limit, demand = max(at_ps.items(), key=lambda item: item[1])
    if scenario.synchronous:
        served = {
            PS_CPUS: at_ps[PS_CPUS] * scenario.workers,
            PS_LINKS: 2 * at_ps[PS_LINKS] * scenario.workers,
            "workers' links": 2 * link,
        }
        limit = max(served, key=lambda name: served[name])
        waiting = {limit: served[limit], "workers' CPUs": own}
    else:
        chunks = min(MAX_CHUNKS, max(1, parameters / ps // CHUNK_BYTES))
        links = link * (1 + 1 / chunks)
        thinking = scenario.step + own + links
        queued = _residence(scenario.workers, demand, thinking)
        if limit == PS_LINKS:
            queued -= demand  # these bytes cross the worker's link at the same time
        waiting = {limit: queued, "workers' links": links, "workers' CPUs": own}
    seconds = scenario.step + sum(waiting.values()) / scenario.local_steps
    return Prediction(ps, seconds, scenario.step / seconds, max(waiting, key=lambda name: waiting[name]))


def least_servers(parameters: float) -> int:
    """The fewest parameter servers whose parts gRPC can move, of which a large one has four chunks."""
    return math.ceil(parameters / (MAX_CHUNKS * MAX_MESSAGE_BYTES))


def choose(scenario: Scenario, share: float) -> Prediction:
    """The prediction with the fewest parameter servers, at most one a worker, that has this share of the best rate."""
    least = least_servers(scenario.parameters)
    found = [predict(scenario, ps) for ps in range(least, max(least, scenario.workers) + 1)]
    best = max(each.busy for each in found)
    return next(each for each in found if each.busy >= share * best)


def _residence(workers: int, demand: float, thinking: float) -> float:
    """Seconds that a worker spends at a station that serves each in `demand` seconds, and thinks in between."""
    more = demand * workers - thinking
    return (more + math.sqrt(more * more + 4 * demand * thinking)) / 2
