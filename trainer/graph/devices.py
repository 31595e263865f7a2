"""The compute devices of this process."""

from typing import Any

from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf


def count_gpus(settings: Settings) -> int:
    """The number of GPUs of this task.

    Raises:
        ConfigurationError: num_gpus exceeds the GPUs that are visible to TensorFlow.
    """
    visible = sum(map(len, configured("GPU")))
    if settings.num_gpus is None:
        return visible
    if settings.num_gpus > visible:
        raise ConfigurationError(
            f"num_gpus={settings.num_gpus}, but {visible} are visible to TensorFlow; set num_gpus=0 to train on "
            "the CPU."
        )
    return settings.num_gpus


def count(settings: Settings, is_cluster: bool) -> int:
    """The devices of each replica, which each task of a cluster finds alike.

    A task does not see those of the others, so that in a cluster `num_gpus` says how many a replica has.
    """
    return settings.num_gpus or 1 if is_cluster else len(all_of(count_gpus(settings)))


def count_cpus() -> int:
    """The number of logical CPU devices: one for all CPUs, unless the program has configured more with `tf.config`."""
    return sum(map(len, configured("CPU")))


def configured(kind: str) -> list[list[Any]]:
    """The logical devices of each visible one: one, unless the program has configured others with `tf.config`.

    All are visible, unless the program has called `tf.config.set_visible_devices`.
    """
    found = tf.config.get_visible_devices(kind)
    return [
        tf.config.get_logical_device_configuration(each) or [tf.config.LogicalDeviceConfiguration()] for each in found
    ]


def visible_gpus() -> str:
    """The numbers of the visible GPUs, for a session, which does not know them; empty if all are."""
    every, visible = tf.config.list_physical_devices("GPU"), tf.config.get_visible_devices("GPU")
    return ",".join(str(every.index(each)) for each in visible) if len(visible) < len(every) else ""


def all_of(gpus: int, task: str = "") -> list[str]:
    """All GPU devices of a task with this number of GPUs; without GPUs, its CPU devices."""
    kind, count = ("GPU", gpus) if gpus else ("CPU", count_cpus())
    return [f"{task}/device:{kind}:{index}" for index in range(count)]
