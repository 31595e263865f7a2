"""What every program gets in the environment: the model, its examples, and how to train. It imports no framework."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

VARIABLE = "RECOMMENDER"
"""The environment variable."""
ADAGRAD_START = 0.1
"""First value of Adagrad's sums, in each program."""
DEEPREC = {"bottom": [512, 256, 64], "top": [256]}
"""Layers of DeepRec's DLRM: its second top layer, of 256, reads what the first one reads, which thus has no effect."""

Mode = Literal["asynchronous", "synchronous"]


@dataclass(frozen=True)
class Work:
    """A training."""

    model: str
    """One of networks.MODELS."""
    data: str
    """The name of the examples."""
    batch_size: int = 2048
    """Of each worker."""
    mode: Mode = "asynchronous"
    ps: int = 1
    workers: int = 2
    examples: int = 2**19
    """Examples to train on, of all workers together."""
    every: int = 0
    """Examples between two snapshots of the weights; 0 makes none."""
    learning_rate: float = 0.2

    @property
    def examples_per_step(self) -> int:
        """A synchronous step takes a batch of each worker."""
        return self.batch_size * (self.workers if self.mode == "synchronous" else 1)

    @property
    def steps(self) -> int:
        """Global steps."""
        return max(2, self.examples // self.examples_per_step)

    @property
    def points(self) -> Sequence[int]:
        """The numbers of examples after which to make a snapshot."""
        return range(self.every, self.examples + 1, self.every) if self.every else ()


@dataclass(frozen=True)
class Given:
    """The work of a program, and its folders."""

    work: Work
    examples: Path
    """The folder with the rows."""
    snapshots: Path
    """The folder for the weights: a file N.npz after N examples, with the arrays by Keras's paths."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """More variables of its environment."""

    def environment(self) -> dict[str, str]:
        """What the program finds."""
        return {VARIABLE: json.dumps([asdict(self.work), str(self.examples), str(self.snapshots)]), **self.variables}


def given() -> Given:
    """What this program was given."""
    work, examples, snapshots = json.loads(os.environ[VARIABLE])
    return Given(Work(**work), Path(examples), Path(snapshots))
