"""The rows that do not train as by `fit`: those that are refused, each with the whole sentence, and known faults.

A fault that is mended fails its test until its line here is removed, and `make conformance-docs` has written the page.
"""

OTHERS = "use another one, such as Adam, AdamW, SGD, RMSprop, Adagrad, Lion or Lamb."
SHAPES = (
    "optimizer={}: its state does not have the shapes of the variables, as the flat vectors on parameter servers need "
    f"it; {OTHERS}"
)
REFUSED = {
    "optimizers.Adafactor": SHAPES.format("Adafactor"),
    "optimizers.LossScaleOptimizer": (
        "mixed_float16 and LossScaleOptimizer need the loss scaled, which the trainer does not do; use mixed_bfloat16, "
        "and the optimizer alone."
    ),
    "optimizers.MultiOptimizer": (
        "optimizer=MultiOptimizer: MultiOptimizer.__init__() got an unexpected keyword argument 'global_clipnorm'; "
        f"{OTHERS}"
    ),
    "optimizers.Muon": SHAPES.format("Muon"),
    "optimizers.Nadam": SHAPES.format("Nadam"),
    "optimizers.ScheduleFreeAdamW": (
        f"optimizer=ScheduleFreeAdamW: its state begins with the values of the variables; {OTHERS}"
    ),
    "programs.a_py_dataset": "train_data() returned Batches; return a tf.data.Dataset, or arrays (inputs, targets).",
    "programs.bfloat16_weights": "sequential/dense/kernel is bfloat16; let trainable variables be float32.",
    "programs.compute_metrics": (
        "the model overrides compute_metrics; let compile() have a keras.metrics.Metric instead."
    ),
    "programs.float64_weights": "sequential/dense/kernel is float64; let trainable variables be float32.",
    "programs.gradient_accumulation": (
        "optimizer=SGD: gradient_accumulation_steps accumulates gradients; use a larger batch_size."
    ),
    "programs.inputs_of_texts": (
        "train_data(): numbers were expected, not \"b'a good film'\"; number labels by "
        "numpy.unique(labels, return_inverse=True)[1], and texts by a lookup."
    ),
    "programs.mixed_float16": (
        "mixed_float16 and LossScaleOptimizer need the loss scaled, which the trainer does not do; use mixed_bfloat16, "
        "and the optimizer alone."
    ),
    "programs.predict_step": (
        "the model overrides predict_step, but an exported model predicts by call(); move it there."
    ),
    "programs.stateful_recurrent_layer": (
        "a layer has stateful=True, so its state is that of one sequence of batches; leave it out."
    ),
}

ONE_EXAMPLE = "the exported SavedModel takes batches of one example only"
DIFFERS = {
    "layers.SpectralNormalization": "the kernel that the layer assigns is lost",
    "programs.batches_of_other_lengths": ONE_EXAMPLE,
    "programs.labels_of_each_time_step": ONE_EXAMPLE,
    "programs.layer_with_a_python_function": "the SavedModel cannot hold a Python function; model.keras does",
    "programs.ragged_inputs": "refused with a remedy for texts",
    "programs.run_eagerly": "refused without a remedy, because the loss reads a value",
    "programs.test_step": "what test_step returns beside the loss is left out",
}
