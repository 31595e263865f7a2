"""The two towers of a retrieval model: what the function `towers` of a model file returns.

The score of a candidate for a query is the product of their vectors.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from trainer.data import catalogue
from trainer.data.examples import ArraySpec, Signature
from trainer.models import keras_loader, ragged
from trainer.tensorflow_types import Tensor

logger = logging.getLogger(__name__)

FUNCTION = "towers"
Kind = Literal["query", "candidate"]
QUERY: Kind = "query"
CANDIDATE: Kind = "candidate"


@dataclass(frozen=True)
class Tower:
    """A part of a Keras model that gives vectors."""

    model: Any
    """A functional model of Keras's, whose variables are those of the whole."""
    inputs: Mapping[str, ArraySpec]
    """Its inputs by the names that the data has."""

    @property
    def id(self) -> str:
        """The input that identifies a candidate: the first one."""
        return next(iter(self.inputs))

    def call(self, given: Mapping[str, Tensor]) -> Tensor:
        """The vectors of a batch, [batch, dim]."""
        restored = ragged.restore(dict(given), keras_loader.inputs_of(self.model))
        if isinstance(self.model.input, dict):
            return self.model(restored, training=False)
        inputs = [*restored.values()]
        return self.model(inputs if isinstance(self.model.input, (list, tuple)) else inputs[0], training=False)


Towers = Mapping[Kind, Tower]


def are_named(module: ModuleType) -> bool:
    """Whether the file of a model is one for retrieval: it has both functions."""
    has = {name: callable(getattr(module, name, None)) for name in (FUNCTION, catalogue.FUNCTION)}
    if any(has.values()) and not all(has.values()):
        (present,), (absent,) = ([name for name, each in has.items() if each is wanted] for wanted in (True, False))
        logger.warning(f"the model's file has {present}(), but no {absent}(), so retrieval is not measured")
    return all(has.values())


def make(name: str, function: Callable[..., Any], network: Any, signature: Signature) -> Towers:
    """The towers that the function of a file returns.

    Args:
        name: That of the file, for errors.
        function: Returns the query tower and the candidate tower of a network.
        network: The whole model.
        signature: That of an example.

    Raises:
        ConfigurationError: the function fails, or returns something else.
    """
    import keras

    with keras_loader.errors(name, f"{FUNCTION}() failed"):
        found = function(network)
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(each, keras.Model) for each in found):
        raise keras_loader.error(
            name,
            f"{FUNCTION}(network) returned {type(found).__name__}; return two of Keras's models: (query, candidate)",
        )
    made: Towers = {
        kind: _tower(name, kind, each, network, signature) for kind, each in zip((QUERY, CANDIDATE), found, strict=True)
    }
    query, candidate = (made[each].model.output_shape[-1] for each in (QUERY, CANDIDATE))
    if query != candidate:
        raise keras_loader.error(
            name, f"{FUNCTION}(): a query has {query} numbers, but a candidate {candidate}; let both have the same"
        )
    identifier = made[CANDIDATE].inputs[made[CANDIDATE].id]
    if identifier.shape not in ((), (1,)) or identifier.dtype.startswith(("float", "bfloat")):
        raise keras_loader.error(
            name,
            f"{FUNCTION}(): the first input of the candidate tower, {made[CANDIDATE].id}, is {identifier}, but it "
            "identifies a candidate: let it be one whole number or one text",
        )
    return made


def _tower(name: str, kind: Kind, model: Any, network: Any, signature: Signature) -> Tower:
    """A tower of a network, with its inputs by the names that the data has."""
    what = f"{FUNCTION}(): the {kind} tower"
    inputs = keras_loader.input_specs(model)
    if inputs is None:
        raise keras_loader.error(name, f"{what} has no keras.Input; make it by keras.Model(inputs, outputs)")
    known = signature.inputs
    if absent := [each for each in inputs if each not in known]:
        raise keras_loader.error(
            name, f"{what} takes {', '.join(absent)}, but an example has {', '.join(known)}; take inputs of the network"
        )
    own = {id(each) for each in network.variables}
    if other := [each.path for each in model.variables if id(each) not in own]:
        raise keras_loader.error(
            name, f"{what} has the variable {other[0]}, which the network lacks; make it of layers of the network"
        )
    shape = model.output_shape
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] is None:
        raise keras_loader.error(name, f"{what} gives {shape}; let it give vectors [None, dim]")
    return Tower(model, {each: known[each] for each in inputs})
