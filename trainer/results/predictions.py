"""What models predict for the examples of a held-out split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.data.examples import Array
from trainer.results import statistics


@dataclass(frozen=True)
class Predictions:
    """What models predict for the held-out split."""

    labels: Array
    """int64 [n]."""
    predicted: Sequence[Array]
    """For each model the class with the largest output, int64 [n]."""
    confidence: Sequence[Array]
    """For each model its output for that class, float64 [n]."""
    losses: Sequence[Array]
    """For each model the log loss of its probability of the label, float64 [n]."""
    scores: Sequence[Array]
    """For each model the probability of the second class, or its logit, float64 [n]; empty if there are more than two
    classes."""
    images: Mapping[int, Array]
    """The inputs of some examples that not all models have right, by index; empty if they are no pictures."""

    @property
    def aucs(self) -> list[float | None]:
        """For each model the area under the ROC curve, if there are two classes and examples of both."""
        return [statistics.auc(self.labels, each) for each in self.scores]

    @property
    def right(self) -> list[Array]:
        """For each model whether it has an example right: bool [n]."""
        return [each == self.labels for each in self.predicted]
