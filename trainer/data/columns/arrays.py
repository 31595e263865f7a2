"""Columns of Arrow as the arrays that a model gets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.columns.decide import is_present, label
from trainer.data.columns.plan import Column, Plan, Target
from trainer.data.examples import Array
from trainer.data.tabular import is_date, is_list, is_number, spelling_key
from trainer.data.tabular.header import is_value
from trainer.errors import ConfigurationError


def inputs(batch: Any, plan: Plan, origin: str, start: int = 0) -> dict[str, Array]:
    """The inputs of the rows of a `pyarrow.RecordBatch` or `Table`, by name, each [n, …].

    Args:
        batch: The rows.
        plan: What a model takes of them.
        origin: Where they are from, for errors.
        start: The number of the first row there, for errors.

    Raises:
        ConfigurationError: a value cannot be one of the column's type; the sentence names the first such row.
    """
    return {each.name: _input(batch, each, origin, start) for each in plan.inputs}


def _input(batch: Any, column: Column, origin: str, start: int) -> Array:
    if column.is_vector_of_columns:
        parts = [_scalars(_whole(batch[name]), column, f"{origin}: {name}", start) for name in column.sources]
        return np.stack(parts, axis=1)
    (name,) = column.reads
    values, place = _whole(batch[name]), f"{origin}: {name}"
    if column.shape == (1,) and not is_list(values.type):
        return _scalars(values, column, place, start)[:, np.newaxis]
    return _lists(values, column, place, start) if column.shape else _scalars(values, column, place, start)


def _whole(values: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        return pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    return values


def _scalars(values: Any, column: Column, place: str, start: int | None) -> Array:
    """Values as an array; `start` is the number of the first one's row, None for the elements of lists."""
    if column.dtype == "string":
        if is_list(values.type):
            raise ConfigurationError(f"{place}: texts were expected, not {values.type}.")
        encoded = _texts(values).fill_null("").dictionary_encode()  # equal texts share one object of Python's
        texts = encoded.dictionary.to_pylist()
        spelled = _spelled(texts, column.categories) if column.kind == "category" else texts
        different = np.asarray([*spelled, ""], object)
        return np.asarray(different[encoded.indices.to_numpy(zero_copy_only=False)])
    if is_date(values.type):
        seconds = pc.divide(values.cast(pa.int64()).cast(pa.float64()), 1e6)
        return _filled(seconds, column)
    if not (is_number(values.type) or pa.types.is_null(values.type)):
        other = "let the model's input be of texts" if column.kind == "given" else "train without it by --exclude"
        raise ConfigurationError(
            f"{place}: numbers were expected, not {_example(values, start)}; correct it, or {other}."
        )
    if column.dtype.startswith("int"):
        if pa.types.is_floating(values.type) and not pc.all(pc.equal(pc.round(values), values)).as_py():
            raise ConfigurationError(f"{place}: whole numbers were expected, as the model's input is {column.dtype}.")
        whole = values.cast(pa.int64(), safe=False).fill_null(int(column.fill or 0))
        found = whole.to_numpy(zero_copy_only=False)
        if column.dtype == "int32" and len(found) and np.abs(found).max() > np.iinfo(np.int32).max:
            raise ConfigurationError(
                f"{place}: {found[np.abs(found).argmax()]} does not fit the model's input, int32; let it be int64."
            )
        return np.asarray(found.astype(column.dtype))
    return _filled(values.cast(pa.float64(), safe=False), column)


def _spelled(texts: Sequence[str], categories: Sequence[str]) -> Sequence[str]:
    """The texts as the categories are spelled: files may spell a text in another way than those of the training."""
    own, known = {*categories}, {spelling_key(each): each for each in categories}
    return [text if text in own else known.get(spelling_key(text), text) for text in texts]


def _texts(values: Any) -> Any:
    """Values as texts; whole numbers without a fraction."""
    if pa.types.is_floating(values.type) and pc.all(pc.equal(pc.round(values), values)).as_py():
        values = values.cast(pa.int64())
    return values.cast(pa.string())


def _filled(numbers: Any, column: Column) -> Array:
    """Numbers of Arrow, float64; those that are absent or not finite are as if missing."""
    found = numbers.to_numpy(zero_copy_only=False)
    missing = np.nan if column.fill is None else column.fill
    with np.errstate(over="ignore"):
        narrow = found.astype(column.dtype)
    return np.where(np.isfinite(narrow), narrow, np.array(missing, column.dtype))


def _lists(values: Any, column: Column, place: str, start: int) -> Array:
    """Lists as an array [n, length]; shorter ones are filled with zeros or empty texts if the length may vary."""
    if isinstance(values.type, pa.FixedShapeTensorType):
        return np.asarray(values.to_numpy_ndarray()).astype(column.dtype)
    if not is_list(values.type):
        raise ConfigurationError(f"{place}: lists were expected, as the model's input has {list(column.shape)}.")
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    wanted = column.shape[0]
    longest = int(lengths.max(initial=1)) if wanted is None else wanted
    is_other = (lengths != wanted) & values.is_valid().to_numpy(zero_copy_only=False)
    if wanted is not None and len(wrong := np.flatnonzero(is_other)):
        raise ConfigurationError(
            f"{place}: row {start + wrong[0]} has a list of {lengths[wrong[0]]}, but {wanted} elements were expected."
        )
    element = Column(column.name, column.kind, column.dtype, (), 0, column.fill)
    flat = _scalars(pc.list_flatten(values), element, place, None)
    empty: Any = "" if column.dtype == "string" else np.nan if column.fill is None and wanted else 0
    found = np.full((len(values), max(1, longest)), empty, object if column.dtype == "string" else column.dtype)
    found[np.arange(max(1, longest)) < lengths[:, np.newaxis]] = flat
    return found


def are_targets(values: Any, names: Sequence[str] | None) -> npt.NDArray[np.bool_]:
    """Which values are targets, and not missing or a label that has none of these names, such as -1: [n]."""
    values = _whole(values)
    found = is_present(values)
    if names and pa.types.is_integer(values.type):
        found = pc.and_(found, pc.and_(pc.greater_equal(values, 0), pc.less(values, len(names))).fill_null(False))
    return np.asarray(found.to_numpy(zero_copy_only=False))


def targets(values: Any, target: Target) -> Array:
    """Labels int32 [n], -1 where a value is no class; or values float32 [n], NaN where there is none."""
    values = _whole(values)
    if not target.classes:
        numbers = values.cast(pa.float64(), safe=False).fill_null(np.nan)
        return np.asarray(numbers.to_numpy(zero_copy_only=False), np.float32)
    if target.has_labels:
        return np.asarray(values.cast(pa.int32(), safe=False).to_numpy(zero_copy_only=False))
    different = values.dictionary_encode()
    known = {name: index for index, name in enumerate(target.classes)}
    numbers = [known.get(label(each), -1) for each in different.dictionary.to_pylist()]
    indices = different.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
    return np.asarray(np.asarray([*numbers, -1], np.int32)[indices])


def weights(values: Any, name: str, origin: str, start: int = 0) -> Array:
    """The weights of the rows, float32 [n].

    Args:
        values: Those of the column.
        name: The column.
        origin: Where they are from, for errors.
        start: The number of the first row there, for errors.

    Raises:
        ConfigurationError: one is missing, negative or not finite, or they are no numbers.
    """
    values = _whole(values)
    if not is_number(values.type):
        raise ConfigurationError(
            f"sample_weight={name}: {origin} has {_example(values)}; numbers from 0 were expected."
        )
    found = _filled(values.cast(pa.float64(), safe=False), Column(name, "number", "float32"))
    if len(wrong := np.flatnonzero(~(found >= 0))):
        first = values[int(wrong[0])].as_py()
        raise ConfigurationError(
            f"sample_weight={name}: {origin} has {'no value' if first is None else first} in row {start + wrong[0]}; "
            "numbers from 0 were expected."
        )
    return found


def _example(values: Any, start: int | None = None) -> str:
    """The type of values, and one of them: the first that does not look like a number, if there is one."""
    present = [(row, str(each)) for row, each in enumerate(values.to_pylist()) if each is not None]
    odd = next((each for each in present if not is_value(each[1])), present[0] if present else None)
    if odd is None:
        return f"{values.type}"
    row, text = odd
    return f"{values.type}, such as {text[:40]!r}{'' if start is None else f' in row {start + row}'}"
