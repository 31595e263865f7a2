"""A model as a model of KServe's model server, which has the protocols, the metrics and the stop.

KServe reads the command line when it is imported, so `trainer.serving.serve` imports this module after its own.
"""

import asyncio
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.errors import InvalidInput, ModelNotFound, ModelNotReady
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.utils.numpy_codec import from_np_dtype

from trainer.serving import rest_v1
from trainer.serving.predictor import Array, BadRequestError, Predictor, TensorSpec
from trainer.serving.sources import Source


class ServedModel(Model):  # type: ignore[misc] # KServe has no types
    """A predictor with the name and the version of its model."""

    def __init__(self, source: Source, predictor: Predictor) -> None:
        super().__init__(source.name)
        self._version, self._predictor = source.version, predictor
        self.ready = True

    def get_input_types(self) -> list[dict[str, Any]]:
        return _describe(self._predictor.inputs)

    def get_output_types(self) -> list[dict[str, Any]]:
        return _describe(self._predictor.outputs)

    async def predict(self, payload: Any, headers: Mapping[str, str] | None = None) -> Any:
        answer = self._infer if isinstance(payload, InferRequest) else self._predict
        try:
            return await asyncio.to_thread(answer, payload)  # meanwhile the server answers others
        except BadRequestError as error:
            raise InvalidInput(str(error)) from None

    def _predict(self, body: Any) -> dict[str, Any]:
        """A request of the V1 protocol."""
        request = rest_v1.parse(body, self._predictor.inputs)
        return rest_v1.respond(self._predictor.predict(request.values), request, self._predictor.classes)

    def _infer(self, request: Any) -> Any:
        """A request of the Open Inference Protocol."""
        outputs = self._predictor.predict({each.name: _array(each) for each in request.inputs})
        return InferResponse(
            response_id=request.id,
            model_name=self.name,
            model_version=self._version,
            infer_outputs=[_output(name, array, request.from_grpc) for name, array in outputs.items()],
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )


class _OneModel(ModelRepositoryExtension):  # type: ignore[misc]
    """Refuses to load and unload models: otherwise, any client could take away the only one."""

    async def load(self, model_name: str) -> None:
        raise InvalidInput("this server has one model, which cannot be loaded or unloaded.")

    unload = load


def serve(source: Source, predictor: Predictor, http_port: int, grpc_port: int, grace_seconds: int) -> None:
    """Serve a model until a signal, and then finish the requests that have begun."""
    server = ModelServer(
        http_port=http_port, grpc_port=grpc_port, grace_period=grace_seconds, enable_latency_logging=False
    )
    server.model_repository_extension = _OneModel(server.registered_models)
    logging.getLogger("kserve").addFilter(_shorten)
    logging.getLogger("kserve.trace").setLevel(logging.WARNING)  # two lines for each request
    warnings.filterwarnings("ignore", "ORJSONResponse is deprecated")  # KServe uses it
    server.start([ServedModel(source, predictor)])


def _shorten(record: logging.LogRecord) -> bool:
    """Log a client's mistake as a line, without KServe's traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, InvalidInput | ModelNotFound | ModelNotReady):
        record.msg, record.args, record.exc_info = f"bad request: {error}", (), None
    return True


def _describe(specs: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": from_np_dtype(spec.dtype),
            "shape": [-1 if size is None else size for size in spec.shape],
        }
        for name, spec in specs.items()
    ]


def _array(given: Any) -> Array:
    """The array of an input of the Open Inference Protocol."""
    try:
        return np.asarray(given.as_numpy())
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequestError(
            f"{given.name}: the data is not {given.datatype} of the shape {list(given.shape)} ({error})."
        ) from None


def _output(name: str, array: Array, is_grpc: bool) -> Any:
    output = InferOutput(name, list(array.shape), from_np_dtype(array.dtype), array)
    if is_grpc:  # KServe converts arrays for HTTP only
        output.set_data_from_numpy(array, binary_data=True)
    return output
