"""The rows that do not train as by `fit`: those that are refused, each with the whole sentence, and known faults.

A fault that is mended fails its test until its line here is removed, and `make conformance-docs` has written the page.
"""

OTHERS = "use another one, such as Adam, AdamW, SGD, RMSprop, Adagrad, Lion or Lamb."
SHAPES = (
    "optimizer={}: its state does not have the shapes of the variables, as the flat vectors on parameter servers need "
    f"it; {OTHERS}"
)
REFUSED = {
    "layers.SpectralNormalization": (
        "a layer assigns its trainable weight spectral_normalization/dense_1/kernel in call(), but only the optimizer "
        "may change it; compute with another value, or let the weight have trainable=False."
    ),
    "optimizers.Adafactor": SHAPES.format("Adafactor"),
    "optimizers.LossScaleOptimizer": (
        "mixed_float16 and LossScaleOptimizer need the loss scaled, which the trainer does not do; use mixed_bfloat16, "
        "and the optimizer alone."
    ),
    "optimizers.MultiOptimizer": (
        "optimizer=MultiOptimizer: a copy for the parameter servers cannot be made of its configuration "
        f"(MultiOptimizer.__init__() got an unexpected keyword argument 'global_clipnorm'); {OTHERS}"
    ),
    "optimizers.Muon": SHAPES.format("Muon"),
    "optimizers.Nadam": SHAPES.format("Nadam"),
    "optimizers.ScheduleFreeAdamW": (
        f"optimizer=ScheduleFreeAdamW: its state begins with the values of the variables; {OTHERS}"
    ),
    "programs.compute_metrics": (
        "the model overrides compute_metrics; let compile() have a keras.metrics.Metric instead."
    ),
    "programs.gradient_accumulation": (
        "optimizer=SGD: gradient_accumulation_steps accumulates gradients; use a larger batch_size."
    ),
    "programs.mixed_float16": (
        "mixed_float16 and LossScaleOptimizer need the loss scaled, which the trainer does not do; use mixed_bfloat16, "
        "and the optimizer alone."
    ),
    "programs.predict_step": (
        "the model overrides predict_step, but an exported model predicts by call(); move it there."
    ),
    "programs.ragged_inputs": (
        "train_data(): a ragged tensor is no array; pad it by to_tensor(), and let a layer such as Masking leave out "
        "the padding."
    ),
    "programs.run_eagerly": (
        "the step cannot be built: AttributeError: 'SymbolicTensor' object has no attribute 'numpy' (line 26); "
        "run_eagerly has no effect here: the step is a graph, so use keras.ops."
    ),
    "programs.stateful_recurrent_layer": (
        "a layer has stateful=True, so its state is that of one sequence of batches; leave it out."
    ),
    "programs.test_step": (
        "the prediction cannot be built: ValueError: test_step returns half, which no metric of the model gives; add a "
        "keras.metrics.Mean."
    ),
}

DIFFERS = {
    "programs.layer_with_a_python_function": "the SavedModel cannot hold a Python function; model.keras does",
}
