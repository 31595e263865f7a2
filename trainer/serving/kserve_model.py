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
from kserve.utils.utils import generate_uuid
from prometheus_client import Gauge

from trainer.serving import rest_v1
from trainer.serving.follower import Follower
from trainer.serving.predictor import Array, BadRequestError, Predictor, TensorSpec
from trainer.serving.sources import Source

VERSION_HEADER = "x-model-version"
"""Of a response: the export and the delta of the model that has answered."""


class ServedModel(Model):  # type: ignore[misc] # KServe has no types
    """A predictor, or the model of a run that it follows, with its name and its version."""

    def __init__(self, source: Source, served: Predictor | Follower) -> None:
        super().__init__(source.name, return_response_headers=isinstance(served, Follower))
        self._version, self._served = source.version, served
        self.ready = True

    @property
    def _predictor(self) -> Predictor:
        return self._served.predictor if isinstance(self._served, Follower) else self._served

    def get_input_types(self) -> list[dict[str, Any]]:
        return _describe(self._predictor.inputs)

    def get_output_types(self) -> list[dict[str, Any]]:
        return _describe(self._predictor.outputs)

    async def predict(
        self, payload: Any, headers: Mapping[str, str] | None = None, response_headers: dict[str, str] | None = None
    ) -> Any:
        answer = self._infer if isinstance(payload, InferRequest) else self._predict
        try:
            response, version = await asyncio.to_thread(answer, payload)  # meanwhile the server answers others
        except BadRequestError as error:
            raise InvalidInput(str(error)) from None
        if response_headers is not None:
            response_headers[VERSION_HEADER] = version
        return response

    def _answer(self, values: Mapping[str, Any]) -> tuple[dict[str, Array], str]:
        """The outputs, and the version of the model that has computed them."""
        if isinstance(self._served, Follower):
            outputs, version = self._served.predict(values)
            return outputs, str(version)
        return self._served.predict(values), self._version

    def _predict(self, body: Any) -> tuple[dict[str, Any], str]:
        """Answer a request of the V1 protocol."""
        request = rest_v1.parse(body, self._predictor.inputs)
        outputs, version = self._answer(request.values)
        return rest_v1.respond(outputs, request, self._predictor.classes), version

    def _infer(self, request: Any) -> tuple[Any, str]:
        """Answer a request of the Open Inference Protocol."""
        outputs, version = self._answer({each.name: _array(each) for each in request.inputs})
        response = InferResponse(
            response_id=request.id or generate_uuid(),
            model_name=self.name,
            model_version=version,
            infer_outputs=[_output(name, array, request.from_grpc) for name, array in outputs.items()],
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )
        return response, version


class _OneModel(ModelRepositoryExtension):  # type: ignore[misc]
    """Refuses to load and unload models: otherwise, any client could take away the only one.

    To load a model that follows a run rolls it back to its export.
    """

    def __init__(self, registered: Any, follower: Follower | None) -> None:
        super().__init__(registered)
        self._follower = follower

    async def load(self, model_name: str) -> None:
        if self._follower is None:
            await self.unload(model_name)
        elif self._model_registry.get_model(model_name) is None:
            raise ModelNotFound(model_name)
        else:
            await asyncio.to_thread(self._follower.roll_back)

    async def unload(self, model_name: str) -> None:
        if self._model_registry.get_model(model_name) is None:
            raise ModelNotFound(model_name)
        raise InvalidInput("this server has one model, which cannot be loaded or unloaded.")


def serve(source: Source, served: Predictor | Follower, http_port: int, grpc_port: int, grace_seconds: int) -> None:
    """Serve a model until a signal, and then finish the requests that have begun."""
    follower = served if isinstance(served, Follower) else None
    server = ModelServer(
        http_port=http_port, grpc_port=grpc_port, grace_period=grace_seconds, enable_latency_logging=False
    )
    server.model_repository_extension = _OneModel(server.registered_models, follower)
    logging.getLogger("kserve").addFilter(_shorten)
    logging.getLogger("kserve.trace").setLevel(logging.WARNING)  # two lines for each request
    warnings.filterwarnings("ignore", "ORJSONResponse is deprecated")  # KServe uses it
    if follower:
        _measure(follower)
        follower.start()
    server.start([ServedModel(source, served)])


def _measure(follower: Follower) -> None:
    """Add the metrics of a model that follows a run."""
    Gauge("trainer_model_delta", "The last delta that the model has").set_function(lambda: follower.version.number)
    Gauge("trainer_model_step", "The global step of the model's values").set_function(lambda: follower.step)
    Gauge("trainer_model_timestamp_seconds", "When the model had these values, in seconds since 1970").set_function(
        lambda: follower.seconds
    )


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
