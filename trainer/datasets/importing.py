"""`trainer data import`: the rows of a source as one new version of a Lance dataset.

The rows are written in batches to files that no version names. One atomic commit then makes them a version, together
with a record of the import and its statistics. So an import that fails or is interrupted leaves no version.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import trainer
from trainer.data import metadata
from trainer.data.columns.choices import Choices
from trainer.data.columns.names import find
from trainer.data.skipped import Skipped
from trainer.data.tabular.kinds import common
from trainer.datasets import idx_files, image_folders, npz_files, tabular_files, tags
from trainer.datasets.check import Check, Rules
from trainer.datasets.images import Shape, check
from trainer.datasets.record import IMPORT, NOTE, Record
from trainer.datasets.source import TEST, Source
from trainer.errors import ConfigurationError, StoreError
from trainer.storage import lance_dataset
from trainer.storage.object_store import is_uri
from trainer.text.command_lines import command_line

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0
APPEND, CREATE, OVERWRITE = "append", "create", "overwrite"


@dataclass(frozen=True)
class Request:
    """The arguments of an import."""

    source: Path
    uri: str
    mode: str
    """create, append or overwrite."""
    choices: Choices
    delimiter: str | None
    """Of files of text; None finds it."""
    rules: Rules
    max_skipped: int
    tag: str | None
    moves_tag: bool
    note: str | None


@dataclass
class Progress:
    """How far an import is."""

    is_committing: bool = False


def run(request: Request, progress: Progress) -> dict[str, Any]:
    """Import a source; return what was done, as JSON has it.

    Raises:
        ConfigurationError: the source or the dataset cannot be used.
        StoreError: the object store fails, or another process has changed the dataset meanwhile.
    """
    start = time.monotonic()
    if not request.source.exists():
        more = "; download it first" if is_uri(str(request.source).replace(":/", "://")) else ""
        raise ConfigurationError(f"SOURCE={request.source}: there is no such file or folder{more}.")
    existing = _existing(request)
    if not lance_dataset.has_atomic_commits(request.uri):
        logger.warning(
            f"{request.uri}: the store ignores conditional writes (If-None-Match), so of two imports at the same time "
            "one may be lost; run one at a time"
        )
    appended = existing if request.mode == APPEND else None
    source, rules = _open(request, appended)
    skipped = Skipped(request.max_skipped)
    checked = Check(source, rules, skipped)
    schema = checked.schema
    if appended:
        _check_columns(appended, schema, request)
        schema = appended.schema
    transaction = _write(request, checked, schema, is_new=not appended)
    statistics = checked.statistics
    if not appended and not source.table and TEST not in statistics.splits:
        logger.warning("no row is held out, but training needs some; append rows with --split test")
    record = Record(
        str(request.source), source.kind, request.mode, skipped.count, skipped.first, trainer.__version__, statistics
    )
    note = request.note or f"{request.mode}: {source.kind} of {request.source}"
    transaction.transaction_properties = {IMPORT: record.to_text(), NOTE: note}
    progress.is_committing = True
    dataset = _commit(request.uri, transaction, is_first=existing is None)
    if request.tag:
        _give_tag(dataset, request, request.tag)
    return {
        "uri": request.uri,
        "version": dataset.version,
        "tag": request.tag,
        "rows": statistics.rows,
        "skipped": skipped.count,
        "first_skipped": skipped.first,
        "seconds": round(time.monotonic() - start, 3),
        "statistics": statistics.to_json(),
    }


def _existing(request: Request) -> Any | None:
    """The dataset at the URI, if there is one, after a check of the arguments that depend on it."""
    lance_dataset.check_access(request.uri, "URI")
    existing = lance_dataset.find_dataset(request.uri)
    if existing is not None and request.mode == CREATE:
        raise ConfigurationError(
            f"{request.uri} exists in version {existing.version}; add a version with --append (more rows) or "
            "--overwrite (other rows; the earlier versions stay), or choose another URI."
        )
    if request.tag is not None:
        tags.check_name(request.tag)
        if existing is not None and not request.moves_tag:
            tags.check_free(existing, request.uri, request.tag)
    return existing


def _open(request: Request, appended: Any | None) -> tuple[Source, Rules]:
    """The source, and the rules that follow from the dataset that gets more rows."""
    source = _open_source(request, appended.schema if appended else None)
    known = metadata.class_names(appended.schema) if appended else None
    source = replace(source, classes=source.classes or known)
    if not appended:
        return source, request.rules
    shape = _image_shape(appended)
    if shape and request.rules.convert and request.rules.convert != shape:
        raise ConfigurationError(
            f"image_size={request.rules.convert}, but the images of {request.uri} are {shape}; choose that size."
        )
    return source, replace(request.rules, image_shape=shape)


def _open_source(request: Request, existing: pa.Schema | None) -> Source:
    place = request.source
    try:
        if place.is_file():
            return tabular_files.open_source(place, request.choices, request.delimiter, existing)
        kinds = {
            "IDX files": idx_files.is_source(place),
            ".npz files": npz_files.is_source(place),
            "CSV or Parquet files": bool(find(place)),
        }
        found = [kind for kind, is_there in kinds.items() if is_there]
        if len(found) > 1:
            raise ConfigurationError(f"SOURCE={place} has {' and '.join(found)}; give each a folder of its own.")
        if kinds["IDX files"]:
            return idx_files.open_source(place)
        if kinds[".npz files"]:
            return npz_files.open_source(place)
        if found:
            return tabular_files.open_source(place, request.choices, request.delimiter, existing)
        if image_folders.is_source(place):
            return image_folders.open_source(place, metadata.class_names(existing) if existing is not None else None)
    except OSError as error:
        raise ConfigurationError(f"SOURCE={place} cannot be read ({error.strerror}: {error.filename}).") from None
    raise ConfigurationError(
        f"SOURCE={place}: IDX files, .npz, .csv or .parquet files, or a folder of images for each class were expected."
    )


def _image_shape(dataset: Any) -> Shape | None:
    """The shape of the images of a dataset; None if it has none."""
    for each in dataset.schema:
        if pa.types.is_binary(each.type):
            first = dataset.head(1, columns=[each.name])[each.name].to_pylist()
            return check(first[0], None).shape if first else None
    return None


def _check_columns(dataset: Any, schema: pa.Schema, request: Request) -> None:
    """Check that rows of this schema can be appended."""
    own, other = ({each.name: each.type for each in found} for found in (schema, dataset.schema))
    has_table = metadata.table(dataset.schema) is not None
    fits = own.keys() == other.keys() and all(
        kind == other[name] or (has_table and common([kind, other[name]]) == other[name]) for name, kind in own.items()
    )
    if not fits or has_table != (metadata.table(schema) is not None):
        raise ConfigurationError(
            f"--append: {request.source} gives the columns {npz_files.describe(schema)}, but {request.uri} has "
            f"{npz_files.describe(dataset.schema)}; use one layout, or --overwrite."
        )


def _write(request: Request, checked: Check, schema: pa.Schema, is_new: bool) -> Any:
    """Write the rows to files; return the transaction that makes them a version."""
    from lance.fragment import write_fragments

    failures: list[BaseException] = []
    reader = pa.RecordBatchReader.from_batches(schema, _reported(checked, schema, failures))
    mode = APPEND if not is_new else OVERWRITE if request.mode == OVERWRITE else CREATE
    try:
        transaction = write_fragments(
            reader,
            request.uri,
            mode=mode,
            return_transaction=True,
            storage_options=lance_dataset.storage_options(request.uri),
        )
    except lance_dataset.ERRORS as error:
        if failures:
            raise failures[0] from None
        if mode == CREATE and "already exists" in str(error):
            raise _created_meanwhile(request.uri) from None
        raise lance_dataset.refusal(request.uri, "written", error) from None
    finally:
        _remove_empty_folders(request.uri)
    if not checked.statistics.rows:
        raise ConfigurationError(f"SOURCE={request.source} has no row that can be used; no version was written.")
    return transaction


def _reported(checked: Check, schema: pa.Schema, failures: list[BaseException]) -> Iterator[pa.RecordBatch]:
    """The batches for Lance, which loses the type of an error, and a line about the progress every few seconds."""
    start = reported = time.monotonic()
    try:
        for batch in checked.batches():
            yield batch.select(schema.names).cast(schema)
            if time.monotonic() - reported > PROGRESS_SECONDS:
                reported = time.monotonic()
                rows, total = checked.statistics.rows, checked.expected_rows
                of = f" of {total:,}" if total else ""
                logger.info(f"{rows:,}{of} rows in {reported - start:.0f} s, {checked.skipped_rows} skipped")
    except BaseException as error:
        failures.append(error)
        raise


def _commit(uri: str, transaction: Any, is_first: bool) -> Any:
    """Make the written rows a version. Lance repeats the commit if other processes append at the same time."""
    import lance
    from lance.commit import CommitConflictError

    options = lance_dataset.storage_options(uri)
    try:
        # Without retries, a dataset that another process has created meanwhile is not overwritten.
        return lance.LanceDataset.commit(uri, transaction, storage_options=options, max_retries=0 if is_first else 100)
    except CommitConflictError:
        raise StoreError(
            f"{uri} was overwritten by another process meanwhile; no rows were added; repeat the import."
        ) from None
    except lance_dataset.ERRORS as error:
        if is_first and lance_dataset.find_dataset(uri) is not None:
            raise _created_meanwhile(uri) from None
        raise lance_dataset.refusal(uri, "written", error) from None


def _give_tag(dataset: Any, request: Request, tag: str) -> None:
    """Give the new version its tag; an error says that the rows are there: a repeated import would add them again."""
    try:
        tags.set_tag(dataset, request.uri, tag, dataset.version, request.moves_tag)
    except (ConfigurationError, StoreError) as error:
        words = ("data", "tag", request.uri, tag, dataset.version)
        remedy = command_line("trainer", *words, *(["--force"] if request.moves_tag else []))
        raise type(error)(
            f"{str(error).rstrip('.')}; the rows are in version {dataset.version}, so do not import them again; run "
            f"{remedy}"
        ) from None


def _created_meanwhile(uri: str) -> StoreError:
    return StoreError(
        f"{uri} was created by another process meanwhile; no rows were added; repeat the import with --append."
    )


def _remove_empty_folders(uri: str) -> None:
    """Remove the folders that an import without a version leaves behind."""
    if not is_uri(uri):
        for folder in (Path(uri) / "data", Path(uri)):
            with contextlib.suppress(OSError):  # they are not empty
                folder.rmdir()
