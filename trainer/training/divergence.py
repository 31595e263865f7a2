"""Noticing that a run diverges: its loss is no number, or has been far above its own past for many steps."""

import math

PATIENCE_STEPS = 1000
"""Global steps for which the loss must have been far above its past."""
SMOOTHING = 0.9
"""Weight of the past in the moving average of the losses observed."""


class DivergenceDetector:
    """Compares the smoothed loss with the loss of a run that has learnt nothing and with the least so far.

    It is far above them when the run has lost half of what it had learnt, or, where it had learnt nothing yet, when it
    is twice what it was at first.
    """

    def __init__(self, untrained_loss: float) -> None:
        """`untrained_loss` is about what a model gives that has learnt nothing.

        The first loss alone says little, as a run may be resumed when it has learnt already.
        """
        self._initial = untrained_loss
        self._smoothed = self._least = math.nan
        self._high_since: int | None = None

    def observe(self, step: int, loss: float) -> str | None:
        """Take the loss of a batch at this global step; a sentence about what is wrong, if the run diverges."""
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
            f"the loss has been far above its own past since step {self._high_since}: {self._smoothed:.3g} at step "
            f"{step}, and the least was {self._least:.3g}"
        )

    @property
    def _limit(self) -> float:
        has_learnt = self._least < self._initial / 2
        return (self._initial + self._least) / 2 if has_learnt else 2 * self._initial
