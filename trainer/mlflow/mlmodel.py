"""The file MLmodel, with which MLflow loads and serves an exported model.

It is MLflow's documented format, with the SavedModel's signature and the flavors `tensorflow` and `python_function`.
`mlflow.tensorflow.log_model` takes no SavedModel. It saves a tf.Module again, without named inputs, and needs pandas.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from trainer.export import saved_model
from trainer.export.saved_model import SIGNATURE
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor


def make(export: Path, run: str, folder: str) -> bytes:
    """Return the content of the file for an exported model.

    Args:
        export: The folder of the SavedModel.
        run: The identifier of the run in MLflow.
        folder: The folder of the model among the run's files.

    Raises:
        ConfigurationError: the model is damaged, or has no signature.
    """
    inputs, outputs = read_signature(export)
    content = {
        "artifact_path": folder,
        "flavors": {
            "tensorflow": {
                "model_type": "tf1-estimator",  # MLflow's name for a SavedModel with a named signature
                "saved_model_dir": ".",
                "meta_graph_tags": ["serve"],
                "signature_def_key": SIGNATURE,
                "code": None,
            },
            "python_function": {"loader_module": "mlflow.tensorflow"},
        },
        "run_id": run,
        "signature": {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs), "params": None},
        "utc_time_created": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f"),
    }
    return yaml.safe_dump(content, sort_keys=False).encode()


def read_signature(export: Path) -> tuple[list[Any], list[Any]]:
    """The inputs and outputs of a SavedModel, in MLflow's form.

    Raises:
        ConfigurationError: the model is damaged, or has no signature.
    """
    model = saved_model.load(export, f"DIR: the model {export}")
    model.session.close()
    return _specs(model.inputs), _specs(model.outputs)


def _specs(tensors: Mapping[str, Tensor]) -> list[Any]:
    specs = []
    for name, tensor in tensors.items():
        dtype = "str" if tensor.dtype == tf.string else tensor.dtype.name
        shape = [-1 if size is None else size for size in tensor.shape.as_list()]
        specs.append({"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}, "name": name})
    return specs
