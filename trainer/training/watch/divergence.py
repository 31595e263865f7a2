"""Divergence detection: the loss is not finite, or has been far above its past for many steps."""

import math

PATIENCE_STEPS = 1000
"""Global steps for which the loss must stay far above its past."""
BETTER, UNTRAINED = 0.9, 0.99
"""The shares of an untrained model's loss below which a run has learned something, and above which nothing is left."""
SMOOTHING = 0.9
"""Weight of the past in the moving average of the observed losses."""


class DivergenceDetector:
    """Compares the smoothed loss with the loss of an untrained model and with the smallest smoothed loss so far.

    The loss is too high when the run has lost half of its improvement, or, if it has not improved yet, when the loss
    is twice the initial one. If the loss of an untrained model is known, it is too high, too, when a run that was
    better by a tenth is back there: units that are all dead guess the same for each example.
    """

    def __init__(self, untrained_loss: float | None) -> None:
        """`untrained_loss` is the approximate loss of an untrained model.

        If it is None, the first observed loss takes its place, although a resumed run starts with a trained model.
        """
        self._untrained = untrained_loss
        self._initial = -math.inf if untrained_loss is None else untrained_loss
        self._smoothed = self._least = math.nan
        self._high_since: int | None = None

    def observe(self, step: int, loss: float) -> str | None:
        """Observe the loss of a batch at this global step; return the reason if the run diverges."""
        if not math.isfinite(loss):
            return f"the loss is {loss} at step {step}"
        if math.isnan(self._smoothed):
            self._initial = max(self._initial, loss)
            self._smoothed = self._least = loss
        self._smoothed = SMOOTHING * self._smoothed + (1 - SMOOTHING) * loss
        self._least = min(self._least, self._smoothed)
        if self._smoothed <= self._limit:
            self._high_since = None
            return None
        if self._high_since is None:
            self._high_since = step
        if step - self._high_since < PATIENCE_STEPS:
            return None
        return (
            f"the loss has been far above its past since step {self._high_since}: {self._smoothed:.3g} at step "
            f"{step}, and the minimum was {self._least:.3g}"
        )

    @property
    def _limit(self) -> float:
        if self._initial <= 0:  # such a loss has no scale
            return math.inf
        if self._least < self._initial / 2:
            return (self._initial + self._least) / 2
        was_better = self._untrained is not None and self._least < BETTER * self._untrained
        return UNTRAINED * self._untrained if self._untrained and was_better else 2 * self._initial
