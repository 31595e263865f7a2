"""Divergence detection from the losses of batches."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from trainer.training.watch.divergence import DivergenceDetector


def first_divergence(losses: Iterable[float], steps: int = 50) -> tuple[int, str] | None:
    """Return the step and the sentence of the first divergence, with a loss every `steps` steps."""
    detector = DivergenceDetector(math.log(10))
    for number, loss in enumerate(losses):
        if sentence := detector.observe(number * steps, loss):
            return number * steps, sentence
    return None


def learning(batches: int) -> list[float]:
    return [2.3 * math.exp(-number / 5) + 0.001 for number in range(batches)]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_divergence_at_once(loss: float) -> None:
    assert first_divergence([2.3, 1.0, loss]) == (100, f"the loss is {loss} at step 100")


def test_a_run_that_learns_does_not_diverge() -> None:
    assert first_divergence(learning(2000)) is None


def test_noise_and_a_short_spike_are_not_divergence() -> None:
    noisy = [loss + 0.3 * (number % 7 == 0) for number, loss in enumerate(learning(500))]
    assert first_divergence([*noisy, *[8.0] * 5, *noisy[100:]]) is None


def test_a_constant_loss_is_not_divergence() -> None:
    assert first_divergence(2.3 + 0.5 * math.sin(number) for number in range(2000)) is None


def test_a_loss_that_stays_far_above_its_past_is_divergence() -> None:
    found = first_divergence([*learning(400), *[6.0] * 100])
    assert found
    step, sentence = found
    assert 400 * 50 + 1000 <= step <= 400 * 50 + 1500
    assert "far above its past since step 20" in sentence


def test_a_run_that_falls_back_to_the_untrained_loss_diverges() -> None:
    assert first_divergence([*learning(400), *[2.3] * 100])


def test_a_run_that_has_learned_little_and_then_guesses_diverges() -> None:
    little = [2.3 - 0.001 * number for number in range(400)]
    found = first_divergence([*little, *[2.307] * 100])
    assert found
    assert "far above its past since step 21" in found[1]
    assert first_divergence([*little, *[2.2] * 1000]) is None


def test_a_resumed_run_with_noisy_batches_does_not_diverge() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        assert first_divergence(0.01 * np.exp(1.5 * random.normal(size=3000))) is None


def test_a_run_that_never_improved_diverges_when_its_loss_doubles() -> None:
    assert first_divergence([2.3] * 10 + [5.5] * 100)
