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
    index: int
    """The index of this replica among all that are listed, from 0."""
    listed: int
    """The number of replicas that are listed."""
    spare_workers: int = 0
    """How many of them need not exist. If there are some, the number of replicas may change during the run."""

    @property
    def replicas(self) -> int:
        """The number of replicas when the run begins."""
        return max(1, self.listed - self.spare_workers)

    @property
    def replica(self) -> int:
        """The index of this replica, from 0, below `replicas`. Replicas that join a run share it with others."""
        return self.index % self.replicas
