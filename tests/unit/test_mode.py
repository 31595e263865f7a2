"""Which settings and clusters go together, and what they are."""

import itertools
from typing import Any, get_args

import pytest

from trainer import mode
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.mode import Mode, Strategy

TABLE = """
strategy   sync_replicas  local_steps  own_model  alone            ps_and_workers  workers
ps         unset          1            no         single           asynchronous    no_ps
ps         unset          1            yes        single           synchronous     no_ps
ps         unset          4            no         !local_steps     !local_steps    !local_steps
ps         unset          4            yes        single           local_sgd       no_ps
ps         yes            1            no         single           synchronous     no_ps
ps         yes            1            yes        single           synchronous     no_ps
ps         yes            4            no         single           local_sgd       no_ps
ps         yes            4            yes        single           local_sgd       no_ps
ps         no             1            no         single           asynchronous    no_ps
ps         no             1            yes        single           asynchronous    no_ps
ps         no             4            no         !local_steps     !local_steps    !local_steps
ps         no             4            yes        !local_steps     !local_steps    !local_steps
allreduce  unset          1            no         no_cluster       has_ps          allreduce
allreduce  unset          1            yes        no_cluster       has_ps          allreduce
allreduce  unset          4            no         !local_steps     !local_steps    !local_steps
allreduce  unset          4            yes        !local_steps     !local_steps    !local_steps
allreduce  yes            1            no         !sync_replicas   !sync_replicas  !sync_replicas
allreduce  yes            1            yes        !sync_replicas   !sync_replicas  !sync_replicas
allreduce  yes            4            no         !sync_replicas   !sync_replicas  !sync_replicas
allreduce  yes            4            yes        !sync_replicas   !sync_replicas  !sync_replicas
allreduce  no             1            no         no_cluster       has_ps          allreduce
allreduce  no             1            yes        no_cluster       has_ps          allreduce
allreduce  no             4            no         !local_steps     !local_steps    !local_steps
allreduce  no             4            yes        !local_steps     !local_steps    !local_steps
"""
"""The mode of each combination; what refuses it: a setting after "!", or one of SENTENCES."""
SENTENCES = {
    "no_ps": "TF_CONFIG: no ps, but with strategy ps they hold the parameters of 2 replicas; add one, ",
    "has_ps": "TF_CONFIG: 1 ps, but with strategy allreduce the workers hold the parameters; leave them out, ",
    "no_cluster": "strategy: allreduce needs a cluster of workers, but none is given; ",
}
HEADER, *ROWS = (line.split() for line in TABLE.strip().splitlines())
SYNC = {"unset": None, "yes": True, "no": False}
WORKERS = ("w:1", "w:2")


def settings_of(row: list[str]) -> Settings:
    strategy, sync, local_steps, own_model = row[:4]
    more: dict[str, Any] = {"strategy": strategy, "model": "mine.py" if own_model == "yes" else "mlp"}
    return Settings(sync_replicas=SYNC[sync], local_steps=int(local_steps), **more)


def found(settings: Settings, ps: int, replicas: int) -> str:
    """What the table says of settings and the tasks of a cluster; without replicas, there is none."""
    try:
        mode.check(settings)
    except ConfigurationError as error:
        return f"!{str(error).partition('=')[0]}"
    cluster = Cluster(Task("worker", 1), (), WORKERS, ("p:1",) * ps) if replicas else None
    try:
        if cluster:
            mode.check_roles("TF_CONFIG", settings.strategy, ps, replicas)
        else:
            mode.check_alone(settings.strategy)
    except ConfigurationError as error:
        return next(name for name, sentence in SENTENCES.items() if str(error).startswith(sentence))
    return Mode.of(settings, cluster, 1).name


def test_the_table_has_all_combinations() -> None:
    every = itertools.product(get_args(Strategy), SYNC, ("1", "4"), ("no", "yes"))
    assert [tuple(row[:4]) for row in ROWS] == list(every)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:4]))
def test_a_combination_has_a_mode_or_is_refused(row: list[str]) -> None:
    settings = settings_of(row)
    assert [found(settings, 0, 0), found(settings, 1, 2), found(settings, 0, 2)] == row[4:]


@pytest.mark.parametrize(
    ("given", "culprit"),
    [
        ({"strategy": "allreduce", "replicas_to_aggregate": 1}, "replicas_to_aggregate=1 conflicts with strategy"),
        ({"replicas_to_aggregate": 1}, "replicas_to_aggregate=1, but only synchronous replicas"),
        ({"straggler_seconds": 2.5}, "straggler_seconds=2.5, but only synchronous replicas"),
        ({"sync_replicas": True, "local_steps": 2, "wire_dtype": "bfloat16"}, "wire_dtype=bfloat16 is for gradients"),
    ],
)
def test_what_only_some_modes_have_is_refused_in_others(given: dict[str, Any], culprit: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{culprit}"):
        mode.check(Settings(**given))


CLUSTER = Cluster(Task("worker", 1), (), ("w:1", "w:2", "w:3"), ("p:1",))


def test_a_step_has_at_most_the_gradients_of_the_replicas() -> None:
    with pytest.raises(ConfigurationError, match="replicas_to_aggregate=4, but the cluster has 3 replicas"):
        Mode.of(Settings(sync_replicas=True, replicas_to_aggregate=4), CLUSTER, 1)


@pytest.mark.parametrize(
    ("given", "devices", "batches"),
    [
        ({"sync_replicas": True}, 1, 3),
        ({"sync_replicas": True}, 4, 12),
        ({"sync_replicas": True, "replicas_to_aggregate": 1}, 4, 4),
        ({"sync_replicas": True, "spare_workers": 1}, 1, 2),
        ({"sync_replicas": False}, 4, 4),
        ({"strategy": "allreduce"}, 4, 12),
    ],
)
def test_a_global_step_counts_the_batches_of_the_replicas_that_wait_for_each_other(
    given: dict[str, Any], devices: int, batches: int
) -> None:
    assert Mode.of(Settings(**given), CLUSTER, devices).batches == batches


def test_a_process_alone_has_the_batches_of_its_devices() -> None:
    assert Mode.of(Settings(), None, 4).batches == 4
    assert Mode.of(Settings(sync_replicas=True, local_steps=4), None, 4).local_steps == 1
