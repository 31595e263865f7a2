"""`trainer models recommend`: the candidates with the largest scores for each query, by the towers of a model."""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.config import Parser
from trainer.data.columns.plan import Column, Plan
from trainer.data.examples import Array
from trainer.data.skipped import DEFAULT_LIMIT, Skipped
from trainer.errors import ConfigurationError
from trainer.export import candidate_files, saved_model
from trainer.export.candidate_files import Candidates
from trainer.export.export_folder import CANDIDATE, DATA, read_facts
from trainer.export.saved_model import LoadedModel
from trainer.results import column_rows, named_model
from trainer.results.column_writer import PARQUET, ColumnWriter
from trainer.results.named_model import open_model

QUERY = "query"
"""The signature of the query tower."""
SCORES = 1 << 26
"""Scores in memory at a time."""
BATCH = 10_000
"""Queries in a run of the session."""
MISSING = -(2.0**63)
"""What stands for a candidate that is missing in a file."""


def add(commands: Any) -> None:
    """Add the subcommand to those of `trainer models`."""
    recommend: Parser = commands.add_parser(
        "recommend",
        prog="trainer models recommend",
        help="find the best candidates for each query, by a model with two towers",
        description="Find the candidates with the largest scores for each query, by a model whose file has the\n"
        "functions towers() and candidates(). The queries are rows of a CSV or a Parquet file with the inputs of the\n"
        "query tower. It writes a row for each candidate: the query, its rank, what identifies it, its name if it has\n"
        "one, and its score.",
    )
    recommend.add_argument("model", metavar="MODEL", help=named_model.HELP)
    recommend.add_argument(
        "--queries", metavar="PATH", type=Path, required=True, help="a CSV or Parquet file with a row for each query"
    )
    recommend.add_argument("--top", metavar="N", type=_count, default=10, help="candidates of a query (default: 10)")
    recommend.add_argument(
        "--seen",
        metavar="PATH",
        type=Path,
        help="a file with columns of the queries and the candidate that each has seen, which are left out",
    )
    recommend.add_argument(
        "--output", metavar="FILE", type=Path, help="a .csv or .parquet file to write (default: CSV to standard output)"
    )
    named_model.add_options(recommend)
    recommend.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Recommend; return the exit code.

    Raises:
        ConfigurationError: the model or a file cannot be read, or the output cannot be written.
        StoreError: an object store or MLflow does not respond.
    """
    for option, place in (("--queries", arguments.queries), ("--seen", arguments.seen)):
        if place and not place.exists():
            raise ConfigurationError(f"{option}: there is no {place}; name a CSV or Parquet file.")
    if arguments.output and arguments.output.suffix not in (".csv", PARQUET):
        raise ConfigurationError(
            f"--output: {arguments.output} ends neither in .csv nor in {PARQUET}; name such a file."
        )
    what = f"MODEL: the model {arguments.model}"
    with open_model(arguments.model, "MODEL", named_model.read_options(arguments)) as named:
        candidates = candidate_files.read(named.folder, what)
        identifier = str(read_facts(named.folder / DATA).get(CANDIDATE, CANDIDATE))
        model = saved_model.load(named.folder, what, {"GPU": 0}, QUERY)
        plan = column_rows.of_inputs(column_rows.plan_of(named.folder), model.inputs)
        queries = _read(arguments.queries, "--queries", plan, what)
        vectors = _embed(model, queries, what)
        model.session.close()
        seen = _read_seen(arguments.seen, queries, identifier, candidates, plan, what) if arguments.seen else {}
        _write(
            _rows(queries, vectors, candidates, identifier, min(arguments.top, len(candidates.ids)), seen),
            arguments.output,
        )
    return 0


def _embed(model: LoadedModel, queries: Mapping[str, Array], what: str) -> npt.NDArray[np.float32]:
    """The vectors of queries, [n, dim]."""
    (output,), count, found = model.outputs.values(), len(next(iter(queries.values()))), []
    for start in range(0, count, BATCH):
        feeds = {each: queries[name][start : start + BATCH] for name, each in model.inputs.items()}
        with saved_model.errors(what):
            found.append(model.session.run(output, feeds))
    return np.concatenate(found)


def _read(place: Path, option: str, plan: Plan, what: str) -> dict[str, Array]:
    """The columns of a plan, each [n, …]."""
    folder, skipped = column_rows.open_columns(place, option, plan, what), Skipped(DEFAULT_LIMIT)
    parts = [inputs for _, inputs in column_rows.rows(folder, None, plan, skipped)]
    if not sum(len(next(iter(each.values()))) for each in parts):
        raise ConfigurationError(f"{option}: {place} has no rows; name another file.")
    return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def _read_seen(
    place: Path, queries: Mapping[str, Array], identifier: str, candidates: Candidates, plan: Plan, what: str
) -> dict[Any, list[int]]:
    """The places of the candidates that queries have seen, by the values of the columns that the file shares with them.

    Raises:
        ConfigurationError: the file lacks a column.
    """
    from trainer.data.columns.folder import open_folder  # it needs pyarrow

    types = open_folder(str(place), "seen").types
    shared = tuple(each for each in plan.inputs if each.name in types and not each.shape and each.name != identifier)
    if not shared or identifier not in types:
        expected = f"a column of the queries ({', '.join(queries)}) and {identifier}"
        raise ConfigurationError(f"--seen: {place} has the columns {', '.join(types)}; it needs {expected}.")
    dtype = "string" if candidates.ids.dtype.kind == "U" else "int64"
    column = Column(identifier, "given", dtype, fill=None if dtype == "string" else MISSING)
    found = _read(place, "--seen", Plan((*shared, column), plan.target), what)
    order = np.argsort(candidates.ids, kind="stable")
    taken = found[identifier].astype(candidates.ids.dtype)
    places, is_known = candidate_files.find(candidates.ids, order, taken)
    names = [each.name for each in shared]
    keys = _keys(queries, names)
    by_key: dict[Any, list[int]] = {key: [] for key in keys}
    for key, index, known in zip(_keys(found, names), places.tolist(), is_known.tolist(), strict=True):
        if known and key in by_key:
            by_key[key].append(index)
    return {number: by_key[key] for number, key in enumerate(keys) if by_key[key]}


def _keys(columns: Mapping[str, Array], names: list[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


def _rows(
    queries: Mapping[str, Array],
    vectors: npt.NDArray[np.float32],
    candidates: Candidates,
    identifier: str,
    top: int,
    seen: Mapping[int, list[int]],
) -> Iterator[dict[str, Any]]:
    """The columns to write, for some queries at a time."""
    shown = {name: each for name, each in queries.items() if each.ndim == 1}
    own = identifier if identifier not in shown else f"{identifier}_of_candidate"
    size = max(1, SCORES // len(candidates.ids))
    for start in range(0, len(vectors), size):
        scores = vectors[start : start + size] @ candidates.vectors.T
        for row in range(len(scores)):
            scores[row, seen.get(start + row, [])] = -np.inf
        best = np.argpartition(scores, -top, axis=1)[:, -top:]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, axis=1), kind="stable"), axis=1)
        values = np.take_along_axis(scores, best, axis=1)
        number, rank = np.nonzero(values > -np.inf)
        chosen = best[number, rank]
        columns: dict[str, Any] = {name: _plain(each[start + number]) for name, each in shown.items()}
        columns |= {"rank": rank + 1, own: _plain(candidates.ids[chosen])}
        if candidates.names is not None:
            columns["name"] = _plain(candidates.names[chosen])
        yield columns | {"score": values[number, rank]}


def _plain(values: Array) -> Any:
    """Texts as a list, which Arrow takes; numbers as they are."""
    return values.tolist() if values.dtype.kind in "OU" else values


def _write(parts: Iterator[dict[str, Any]], output: Path | None) -> None:
    """Write the columns to a file of CSV or Parquet, or print them as CSV."""
    if output is None:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for number, part in enumerate(parts):
            if not number:
                writer.writerow(part)
            writer.writerows(zip(*part.values(), strict=True))
        return
    with ColumnWriter([output], output) as found:
        for part in parts:
            found.add(part)
    print(f"{output}: {found.count:,} recommendations")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, but a number from 1 was expected")
    return int(text)
