"""The rows that do not train as by `fit`: those that are refused, each with the whole sentence, and known faults.

A fault that is mended fails its test until its line here is removed, and `make conformance-docs` has written the page.
"""

TABLES = (
    "the step cannot be built: ValueError: it uses tables or variables that are not weights ({}); move lookups into "
    "the data."
)
SHAPES = (
    "optimizer={}: its state does not have the shapes of the variables, as the flat vectors on parameter servers need "
    "it; use another one, such as Adam, AdamW, SGD, RMSprop, Adagrad, Lion or Lamb."
)
REFUSED = {
    "layers.IntegerLookup": TABLES.format("functional_1/integer_lookup_1"),
    "layers.StringLookup": TABLES.format("functional_1/string_lookup_1"),
    "layers.TextVectorization": TABLES.format("functional_1/text_vectorization_1"),
    "optimizers.Adafactor": SHAPES.format("Adafactor"),
    "optimizers.LossScaleOptimizer": (
        "mixed_float16 needs its loss scaled, which the trainer does not do; use mixed_bfloat16."
    ),
    "optimizers.Nadam": SHAPES.format("Nadam"),
    "programs.a_py_dataset": "train_data() returned Batches; return a tf.data.Dataset, or arrays (inputs, targets).",
    "programs.bfloat16_weights": "sequential/dense/kernel is bfloat16; let trainable variables be float32.",
    "programs.float64_weights": "sequential/dense/kernel is float64; let trainable variables be float32.",
    "programs.gradient_accumulation": (
        "optimizer=SGD: gradient_accumulation_steps accumulates gradients; use a larger batch_size."
    ),
    "programs.inputs_of_texts": (
        "train_data(): numbers were expected, not \"b'a good film'\"; number labels by "
        "numpy.unique(labels, return_inverse=True)[1], and texts by a lookup."
    ),
    "programs.mixed_float16": (
        "mixed_float16 needs its loss scaled, which the trainer does not do; use mixed_bfloat16."
    ),
    "programs.train_step": "the model overrides train_step, which is the trainer's part; override compute_loss.",
}

ADDED_LOSS = "refused in error: the loss that the layer adds is out of scope"
TARGETS = "the exported SavedModel wants the targets, because the loss has a stateful op"
DIFFERS = {
    "layers.ActivityRegularization": ADDED_LOSS,
    "layers.SpectralNormalization": "the kernel that the layer assigns is lost",
    "losses.CTC": TARGETS,
    "metrics.F1Score": "a metric with a value for each class is left out",
    "optimizers.MultiOptimizer": "it ends in an exception",
    "optimizers.Muon": "it ends in an exception, although a refusal is meant",
    "optimizers.ScheduleFreeAdamW": "its state does not begin with the values of the variables",
    "programs.activity_regularizer": ADDED_LOSS,
    "programs.add_loss": ADDED_LOSS,
    "programs.batches_of_other_lengths": "an error after the last step: batches are made anew, without padding",
    "programs.causal_attention": TARGETS,
    "programs.compute_metrics": "the metrics that compute_metrics adds are left out",
    "programs.constraints": "constraints do not apply",
    "programs.fixed_batch_size": "refused in error: the model is built with one example",
    "programs.labels_of_each_pixel": TARGETS,
    "programs.labels_of_each_time_step": TARGETS,
    "programs.layer_name_with_an_underscore": "it ends in an exception",
    "programs.layer_with_a_counter": "refused in error: integers that change are not carried",
    "programs.layer_with_a_python_function": "the SavedModel cannot hold a Python function; model.keras does",
    "programs.layer_with_a_tensorflow_variable": "refused with a remedy for lookup tables",
    "programs.layer_with_state": "the gradient flows through what the layer assigns",
    "programs.learning_rate_of_a_function": "it ends in an exception",
    "programs.loss_scale_factor": "each step is divided by the factor",
    "programs.loss_with_a_python_function": TARGETS,
    "programs.no_targets": ADDED_LOSS,
    "programs.own_metric": "refused in error: result() returns a variable",
    "programs.tied_weights": TARGETS,
    "programs.predict_step": "predict_step does not apply",
    "programs.ragged_inputs": "refused with a remedy for texts",
    "programs.random_numbers_of_keras_without_a_seed": "refused in error: Keras's own random numbers are not carried",
    "programs.run_eagerly": "refused without a remedy, because the loss reads a value",
    "programs.stateful_recurrent_layer": "refused in error: the model is built with one example",
    "programs.test_step": "test_step does not apply",
    "programs.unused_layer": "weights without a gradient decay",
    "programs.variational_autoencoder": ADDED_LOSS,
}
