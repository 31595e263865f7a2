"""`trainer models compare`: two models on the same held-out examples."""

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.config import Parser, load_values
from trainer.data.datasets import Dataset
from trainer.errors import ConfigurationError
from trainer.results import compare_page, run
from trainer.results.comparison import Comparison, Named
from trainer.results.predictions import SavedModel, predict
from trainer.results.report import write_page
from trainer.training import problem

MODEL_FILE = "saved_model.pb"


def add(commands: Any) -> None:
    """Add the subcommand to those of `trainer models`."""
    compare: Parser = commands.add_parser(
        "compare",
        help="compare two models on the same held-out data",
        prog="trainer models compare",
        description="Compare two models on the same held-out data: accuracies with 95 % intervals, McNemar's test.\n"
        "A and B are training directories, export folders or SavedModels. The data is that of A's run, or of B's,\n"
        "unless it is named.",
    )
    for name in ("A", "B"):
        compare.add_argument(name, help="a training directory or its URI, an export folder or a SavedModel")
    compare.add_argument("--dataset", "--data", metavar="NAME", help="digits, mnist, npz or lance")
    compare.add_argument("--data_dir", metavar="PATH", help="folder of the data, or URI of a Lance dataset")
    compare.add_argument("--data_version", metavar="VERSION", help="version or tag of a Lance dataset")
    compare.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with the examples on which they differ"
    )
    compare.add_argument("--json", action="store_true", help="print the comparison as one line of JSON")
    compare.set_defaults(run=run_command)


def run_command(arguments: argparse.Namespace) -> None:
    """Compare the two models, and print and write what is found.

    Raises:
        ConfigurationError: a model or the data cannot be read, or they do not fit.
        StoreError: an object store does not respond.
    """
    names = ("dataset", "data_dir", "data_version")
    data = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    with open_model(arguments.A, "A") as first, open_model(arguments.B, "B") as second:
        found = _compare(first, second, data)
    if arguments.html:
        write_page(arguments.html, compare_page.make(found))
    print(json.dumps(found.to_json()) if arguments.json else _write(found))
    if arguments.html and not arguments.json:
        print(f"\npage  {arguments.html}")


@contextlib.contextmanager
def open_model(place: str, argument: str) -> Iterator[Named]:
    """Find the SavedModel that a user has named.

    Raises:
        ConfigurationError: there is none.
    """
    path = Path(place)
    if "://" in place or run.is_run(path):
        with run.open_run(place, argument) as found:
            if found.export is None:
                raise ConfigurationError(
                    f"{argument}: the run {place} has no exported model: it is written at the end of the run; name "
                    "another run, or a SavedModel."
                )
            yield Named(place, found.export, found.settings, found.result.get("dataset_digest"))
        return
    if (path / MODEL_FILE).is_file():
        yield Named(place, path, None, None)
        return
    versions = [each for each in path.glob("*") if each.name.isdigit() and (each / MODEL_FILE).is_file()]
    if not versions:
        raise ConfigurationError(
            f"{argument}: {place} is no model: a training directory, an export folder or a folder with {MODEL_FILE} "
            "was expected."
        )
    yield Named(place, max(versions, key=lambda each: int(each.name)), None, None)


def _compare(first: Named, second: Named, data: dict[str, str]) -> Comparison:
    dataset = _load(first, second, data)
    with SavedModel(first.folder, "A") as a, SavedModel(second.folder, "B") as b:
        if a.classes != b.classes:
            raise ConfigurationError(
                f"A: {first.place} knows {a.classes} classes, but B: {second.place} knows {b.classes}; compare models "
                "of the same classes."
            )
        return Comparison((first, second), dataset, predict([a, b], dataset.test))


def _load(first: Named, second: Named, data: dict[str, str]) -> Dataset:
    """The data that the user names, otherwise that of the first run that is known."""
    known = first.settings or second.settings
    if "dataset" in data:
        settings = load_values(data)
    elif known is None:
        raise ConfigurationError(
            "dataset: neither A nor B is the directory of a run with its settings, so the data is not known; name it "
            "with --dataset and --data_dir."
        )
    else:
        given = load_values(data)
        settings = dataclasses.replace(known, **{name: getattr(given, name) for name in data})
    return problem.load_dataset(settings)


def _write(found: Comparison) -> str:
    """The comparison as a table for a terminal."""
    content = found.to_json()
    version = f" version {found.dataset.version}" if found.dataset.version else ""
    width = max(len(each["model"]) for each in content["models"])
    lines = [f"{content['examples']:,} held-out examples of {found.dataset.name}{version}", ""]
    lines.append(f"   {'model':{width}}  accuracy  95 % interval        right")
    for letter, each in zip("AB", content["models"], strict=True):
        low, high = each["interval"]
        lines.append(
            f"{letter}  {each['model']:{width}}  {each['accuracy']:8.4f}  {low:.4f} to {high:.4f}  {each['right']:9,}"
        )
    rows = (
        ("both right", "both_right"),
        ("only A right", "only_first_right"),
        ("only B right", "only_second_right"),
        ("neither right", "neither_right"),
    )
    lines += ["", *(f"   {title:14}{content[name]:9,}" for title, name in rows)]
    return "\n".join([*lines, "", found.conclusion, *found.warnings])
