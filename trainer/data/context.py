"""What reading data may depend on."""

from dataclasses import dataclass, field, replace


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
    _asked: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def replicas(self) -> int:
        """The number of replicas when the run begins."""
        return max(1, self.listed - self.spare_workers)

    @property
    def replica(self) -> int:
        """The index of this replica, from 0, below `replicas`. Replicas that join a run share it with others."""
        self._asked.add("replica")
        return self.index % self.replicas

    @property
    def has_chosen(self) -> bool:
        """Whether a function with this context has asked which replica it is, so that it can choose its own part."""
        return bool(self._asked)

    @property
    def alone(self) -> "DataContext":
        """This context without other replicas."""
        return replace(self, index=0, listed=1, spare_workers=0)
