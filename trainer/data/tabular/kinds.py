"""The types of columns: numbers, texts, dates, lists, images; and what to do about others."""

from collections.abc import Sequence

import pyarrow as pa

TIME = pa.timestamp("us")
"""The type of dates and times. Those with a time zone are in UTC."""


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a column of this type are texts."""
    return bool(pa.types.is_string(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a column of this type are numbers, of which true is 1."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_date(kind: pa.DataType) -> bool:
    """Whether values of a column of this type are dates, with or without a time."""
    return bool(pa.types.is_timestamp(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a column of this type are lists of one or several lengths."""
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind))


def remedy(kind: pa.DataType) -> str:
    """What to do about a column of a type that a model cannot take, as the end of a sentence."""
    if pa.types.is_null(kind):
        return "it has no value; leave it out"
    if pa.types.is_map(kind):
        return "write a column for each key that matters"
    if is_list(kind) or pa.types.is_large_list(kind):
        return "write one list of numbers or texts a row, such as by flattening the inner lists"
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return "write it as a number, such as of seconds"
    return "write it as a number, a text, a date or a list of them"


def simplest(kind: pa.DataType) -> pa.DataType:
    """The type in which values of this type are read: int64, float64, string, a timestamp or lists of these.

    Whole numbers that may be above 64 bits are uint64 or decimals here; their values decide (`parquet.py`).
    """
    if isinstance(kind, pa.ExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return simplest(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return simplest(kind.value_type)
    if may_exceed_int64(kind):
        return kind
    if pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0):
        return pa.int64()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return TIME
    if _is_any_list(kind):
        item = simplest(kind.value_type)
        item = pa.int64() if pa.types.is_boolean(item) else item
        return pa.list_(item) if item in (pa.int64(), pa.float64(), pa.string()) else kind
    return kind


def may_exceed_int64(kind: pa.DataType) -> bool:
    """Whether whole numbers of this type may need more than 64 bits."""
    return bool(pa.types.is_uint64(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0 and kind.precision > 18))


def common(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """The type that has the values of all of these; None if there is none."""
    found = [*dict.fromkeys(kind for kind in kinds if not pa.types.is_null(kind))]
    if len(found) < 2:
        return found[0] if found else pa.null()
    if all(map(is_number, found)):
        return pa.float64() if pa.float64() in found else pa.int64()
    if all(is_number(kind) or is_text(kind) or is_date(kind) for kind in found):
        return pa.string()
    if all(pa.types.is_list(kind) for kind in found):
        item = common([kind.value_type for kind in found])
        return None if item is None else pa.list_(item)
    return None


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )
