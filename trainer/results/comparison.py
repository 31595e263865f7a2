"""Two models on the same held-out examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainer.data.datasets import Dataset
from trainer.results import statistics
from trainer.results.named_model import Named
from trainer.results.predictions import Predictions
from trainer.results.statistics import Difference

NAMES = {"auc": ("AUC", "DeLong"), "log_loss": ("Log loss", "paired bootstrap")}
"""Of each figure: its name, and how its interval is found."""


@dataclass(frozen=True)
class Comparison:
    """Two models and what they predict."""

    models: tuple[Named, Named]
    dataset: Dataset
    predictions: Predictions
    classes: Sequence[str]
    """Their names."""

    @property
    def table(self) -> tuple[int, int, int, int]:
        """The examples that both have right, only the first, only the second, and neither."""
        first, second = self.predictions.right
        cells = (first & second, first & ~second, ~first & second, ~first & ~second)
        return tuple(int(each.sum()) for each in cells)  # type: ignore[return-value]

    def to_json(self) -> dict[str, Any]:
        """The comparison as data."""
        total = len(self.predictions.labels)
        both, first, second, neither = self.table
        models = []
        aucs = self.predictions.aucs or [None, None]
        for named, right, auc, losses in zip(
            self.models, self.predictions.right, aucs, self.predictions.losses, strict=True
        ):
            low, high = statistics.wilson(int(right.sum()), total)
            models.append(
                {
                    "model": named.place,
                    "saved_model": str(named.folder),
                    "right": int(right.sum()),
                    "accuracy": round(float(right.mean()), 6),
                    "interval": [round(low, 6), round(high, 6)],
                    "log_loss": round(float(losses.mean()), 6),
                    **({} if auc is None else {"auc": round(auc, 6)}),
                }
            )
        different = self.predictions.predicted[0] != self.predictions.predicted[1]
        return {
            "dataset": self.dataset.name,
            "dataset_version": self.dataset.version,
            "dataset_digest": self.dataset.digest,
            "examples": total,
            "models": models,
            "both_right": both,
            "only_first_right": first,
            "only_second_right": second,
            "neither_right": neither,
            "different_predictions": int(different.sum()),
            "warnings": self.warnings,
            "mcnemar_p": statistics.mcnemar(first, second),
            **{
                f"{name}_difference": {key: round(value, 6) for key, value in each._asdict().items()}
                for name, each in self.differences.items()
            },
        }

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """By how much a figure of A is larger than that of B."""
        found = {"log_loss": statistics.mean_difference(*self.predictions.losses)}
        of_auc = (
            statistics.auc_difference(self.predictions.labels, *scores) if (scores := self.predictions.scores) else None
        )
        return {**({"auc": of_auc} if of_auc else {}), **found}

    @property
    def sentences(self) -> list[str]:
        """The differences, each with its interval."""
        found = []
        for name, each in self.differences.items():
            text, how = NAMES[name]
            may_be_chance = ": the difference may be chance" if each.low <= 0 <= each.high else ""
            found.append(
                f"{text} of A minus that of B: {each.value:.4f}, 95 % interval {each.low:.4f} to {each.high:.4f} "
                f"({how}){may_be_chance}."
            )
        return found

    @property
    def warnings(self) -> list[str]:
        """Which model was trained on other data, so that these examples may be among those it has learnt."""
        return [
            f"{letter} was trained on other data (digest {named.digest[:12]}), which may contain these examples."
            for letter, named in zip("AB", self.models, strict=True)
            if named.digest and self.dataset.digest and named.digest != self.dataset.digest
        ]

    @property
    def conclusion(self) -> str:
        """What McNemar's test says."""
        _, first, second, _ = self.table
        if not np.any(self.predictions.predicted[0] != self.predictions.predicted[1]):
            return "The models predict the same for each example."
        p = statistics.mcnemar(first, second)
        exact = f"McNemar's exact test: p = {p:.3g}"
        if p >= 0.05:
            return f"{exact}: the difference may be chance."
        return f"{exact}: {'A' if first > second else 'B'} is more accurate."
