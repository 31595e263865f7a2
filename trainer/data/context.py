"""What reading data may depend on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataContext:
    """The replica that reads, and the settings of its run. The functions of a model file get it."""

    data_dir: str
    """A path or a URI."""
    batch_size: int
    """Examples per replica and step. The trainer makes the batches."""
    seed: int
    replica: int
    """The index of this replica, from 0."""
    replicas: int
    """The number of replicas."""
