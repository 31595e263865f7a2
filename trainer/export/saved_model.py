"""Saves a session as a SavedModel, and loads one into a session, with the tensors of its signature."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from trainer.errors import ConfigurationError
from trainer.export.export_folder import SAVED_MODEL
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.errors import brief
from trainer.tensorflow_types import Session, Tensor

SIGNATURE = "serving_default"
SERVE = "serve"
"""The tag of the graph that has it."""


class LoadedModel(NamedTuple):
    """A SavedModel in a session of its own graph, and the tensors of its signature by name."""

    session: Session
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def has_signature(folder: Path, what: str) -> bool:
    """Whether the model of a folder has the signature `serving_default`.

    Raises:
        ConfigurationError: it is damaged.
    """
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel  # after trainer.tensorflow, which prepares it

    content = SavedModel()
    try:
        content.ParseFromString((folder / SAVED_MODEL).read_bytes())
    except (OSError, DecodeError) as error:
        raise _damage(what, error) from None
    return any(SERVE in graph.meta_info_def.tags and SIGNATURE in graph.signature_def for graph in content.meta_graphs)


def load(folder: Path, what: str, devices: Mapping[str, int] | None = None, signature: str = SIGNATURE) -> LoadedModel:
    """Load the model of a folder with one of its signatures.

    Args:
        folder: It has saved_model.pb.
        what: What errors call the model, such as "A: the model runs/mine": the folder may be a temporary copy.
        devices: The most devices of each type that its session uses, such as {"GPU": 0}; by default all.
        signature: The name of the signature.

    Raises:
        ConfigurationError: it is damaged, or has no such signature.
    """
    session = tf1.Session(graph=tf.Graph(), config=tf1.ConfigProto(device_count=devices))
    try:
        with session.graph.as_default():
            signatures = tf1.saved_model.load(session, [SERVE], str(folder)).signature_def
    except (tf.errors.OpError, OSError, ValueError, RuntimeError, DecodeError) as error:
        raise _damage(what, error) from None
    if signature not in signatures:
        raise ConfigurationError(f"{what} has no signature {signature}; export it with one.")
    tensor, found = session.graph.get_tensor_by_name, signatures[signature]
    return LoadedModel(
        session,
        {name: tensor(info.name) for name, info in sorted(found.inputs.items())},
        {name: tensor(info.name) for name, info in sorted(found.outputs.items())},
    )


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """Convert an error of the model in a run of its session, such as of an id that it does not know."""
    try:
        yield
    except tf.errors.OpError as error:
        raise ConfigurationError(f"{what} cannot use these values: {brief(error).rstrip('.')}.") from None


class Signature(NamedTuple):
    """Input and output tensors by name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def save(folder: Path, session: Session, signatures: Mapping[str, Signature], saver: Any = None) -> None:
    """Write the graph of a session and its variables as a SavedModel.

    Args:
        folder: Its folder, which does not exist yet.
        session: The session.
        signatures: The signatures by name.
        saver: What saves the variables, if not TensorFlow's own saver.
    """
    with session.graph.as_default():
        builder = tf1.saved_model.Builder(str(folder))
        made = {name: tf1.saved_model.predict_signature_def(*each) for name, each in signatures.items()}
        builder.add_meta_graph_and_variables(session, [SERVE], made, saver=saver)
        builder.save()


def _damage(what: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is incomplete or altered ({brief(error).rstrip('.')}); export it again, or copy it again."
    )
