"""The bodies of TensorFlow Serving's REST API, which is KServe's V1 protocol: JSON to named values and back.

`instances` has rows, and the response has `predictions`; `inputs` has columns, and the response has `outputs`. Where a
model has one input or one output, its name may be left out, and is in the response. If the names of the classes are
known, the response has them too, in the order of the probabilities. A value `{"b64": "…"}` is base64 of a PNG or JPEG
image, or of a text.
"""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.data.image_files import UnreadableImageError, decode
from trainer.export.saved_model import SIGNATURE
from trainer.serving.predictor import Array, BadRequestError, TensorSpec

BASE64 = "b64"
IMAGE_FORMATS = ("PNG", "JPEG")
"""A server decodes no others: fewer decoders get the bytes of strangers."""


@dataclass(frozen=True)
class PredictRequest:
    """A predict request."""

    values: Mapping[str, Any]
    """For each input its rows."""
    has_rows: bool
    """Whether the response has rows too."""


def parse(body: Any, inputs: Mapping[str, TensorSpec]) -> PredictRequest:
    """Parse the body of a request, JSON or what was parsed from it, for a model with these inputs.

    Raises:
        BadRequestError: it is none of the two forms, or a value in base64 cannot be decoded.
    """
    request = _parse(body, inputs)
    values = {
        name: _decode_rows(name, rows, inputs[name]) if name in inputs else rows
        for name, rows in request.values.items()
    }
    return replace(request, values=values)


def _parse(body: Any, inputs: Mapping[str, TensorSpec]) -> PredictRequest:
    if isinstance(body, bytes):  # a request whose content type is not JSON, such as curl's
        try:
            body = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadRequestError(f"the body is not JSON ({error}).") from None
    if not isinstance(body, dict) or ("instances" in body) == ("inputs" in body):
        raise BadRequestError('the body needs "instances", a list of examples, or "inputs", but not both.')
    signature = body.get("signature_name", SIGNATURE)
    if signature != SIGNATURE:
        raise BadRequestError(f'signature_name: the model has only the signature "{SIGNATURE}".')
    if "inputs" in body:
        columns = body["inputs"]
        return PredictRequest(columns if isinstance(columns, dict) else _only(columns, inputs), has_rows=False)
    return PredictRequest(_columns(body["instances"], inputs), has_rows=True)


def _columns(rows: Any, inputs: Mapping[str, TensorSpec]) -> Mapping[str, Any]:
    if not isinstance(rows, list) or not rows:
        raise BadRequestError("instances: a list of at least one example was expected.")
    if not any(isinstance(row, dict) and not _is_base64(row) for row in rows):
        return _only(rows, inputs)
    if any(not isinstance(row, dict) or row.keys() != inputs.keys() for row in rows):
        raise BadRequestError(f"instances: each example needs the inputs {', '.join(inputs)}, and no others.")
    return {name: [row[name] for row in rows] for name in inputs}


def _only(values: Any, inputs: Mapping[str, TensorSpec]) -> Mapping[str, Any]:
    if len(inputs) > 1:
        raise BadRequestError(f"the model has several inputs, {', '.join(inputs)}: each needs its name in the request.")
    return dict.fromkeys(inputs, values)


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {BASE64}


def _decode_rows(name: str, rows: Any, spec: TensorSpec) -> Any:
    """The rows of an input, with arrays or texts in place of those in base64."""
    if not isinstance(rows, list):
        return rows
    return [
        _decode(f"{name}: example {index}", row[BASE64], spec) if _is_base64(row) else row
        for index, row in enumerate(rows)
    ]


def _decode(where: str, text: Any, spec: TensorSpec) -> Any:
    """The value of one example in base64: a text, or an image as the model takes it."""
    remedy = "give the output of base64 --wrap=0 for the file"
    if not isinstance(text, str):
        raise BadRequestError(f"{where}: b64 is not a string; {remedy}.")
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise BadRequestError(f"{where}: b64 is not base64 ({error}); {remedy}.") from None
    if spec.dtype == object:
        return content
    shape = spec.image_shape
    if shape is None:
        raise BadRequestError(
            f"{where}: b64 is for images, float32 [n, height, width, 1, 3 or 4], and for texts, but the model takes "
            f"{spec}; give numbers."
        )
    try:
        return decode(io.BytesIO(content), shape, is_resized=False, formats=IMAGE_FORMATS)
    except UnreadableImageError as error:
        raise BadRequestError(
            f"{where}: {error}; give a PNG or a JPEG image of {shape[0]} x {shape[1]} pixels (height x width)."
        ) from None


def respond(outputs: Mapping[str, Array], request: PredictRequest, classes: Sequence[str] = ()) -> dict[str, Any]:
    """The body of the response, for JSON, with the names of the classes if they are known."""
    return {**_respond(outputs, request), **({"classes": classes} if classes else {})}


def _respond(outputs: Mapping[str, Array], request: PredictRequest) -> dict[str, Any]:
    columns = {name: array.tolist() for name, array in outputs.items()}
    if len(columns) == 1:
        (only,) = columns.values()
        return {"predictions" if request.has_rows else "outputs": only}
    if not request.has_rows:
        return {"outputs": columns}
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}
