"""The devices that this process computes on."""

from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf


def count_gpus(settings: Settings) -> int:
    """GPUs that replicas on this machine share.

    Raises:
        ConfigurationError: more were asked for than TensorFlow sees.
    """
    visible = len(tf.config.list_physical_devices("GPU"))
    if settings.num_gpus is None:
        return visible
    if settings.num_gpus > visible:
        raise ConfigurationError(
            f"num_gpus: {settings.num_gpus} were asked for, but TensorFlow sees {visible} here: 0 trains on the CPU."
        )
    return settings.num_gpus


def count_cpus() -> int:
    """CPU devices, each of which stands for all CPUs: one, unless a program has divided it by `tf.config`."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    return len(tf.config.get_logical_device_configuration(cpu) or [cpu])


def all_of(gpus: int) -> list[str]:
    """All devices of a process that has so many GPUs; its CPU devices where it has none."""
    kind, count = ("GPU", gpus) if gpus else ("CPU", count_cpus())
    return [f"/device:{kind}:{index}" for index in range(count)]
