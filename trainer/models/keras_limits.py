"""What Keras trains and the trainer does not, as far as a model shows it before it is called."""

from typing import Any

import optree

from trainer.models import own_train_step


def why_not(model: Any) -> str:
    """Why the trainer cannot train a Keras model, with the remedy; empty if it can."""
    import keras

    if own_train_step.overrides(model, "predict_step"):
        return "the model overrides predict_step, but an exported model predicts by call(); move it there"
    if own_train_step.overrides(model, "compute_metrics"):
        return "the model overrides compute_metrics; let compile() have a keras.metrics.Metric instead"
    if own_train_step.is_own(model) and (reason := _why_not_its_step(model)):
        return reason
    if model.compiled and isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        return (
            "mixed_float16 and LossScaleOptimizer need the loss scaled, which the trainer does not do; use "
            "mixed_bfloat16, and the optimizer alone"
        )
    if any(getattr(each, "stateful", False) for each in model._flatten_layers()):
        return "a layer has stateful=True, so its state is that of one sequence of batches; leave it out"
    loss_weights: Any = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    for each in optree.tree_leaves(loss_weights):
        if isinstance(each, str):
            return f"compile() got {each!r} as loss_weights, the third of its arguments; write metrics=[{each!r}]"
    return ""


def _why_not_its_step(model: Any) -> str:
    """Why the trainer cannot take the own `train_step` of a model."""
    import keras

    if not model.compiled:
        return "the model overrides train_step, so compile() it with the optimizer that it uses"
    found = [name for name, value in vars(model).items() if isinstance(value, keras.optimizers.Optimizer)]
    if len(found) > 1:
        return (
            f"train_step has several optimizers ({', '.join(found)}), whose updates follow each other within a step; "
            "the trainer updates the parameters once in a step, so use one optimizer, on the sum of the losses"
        )
    return ""
