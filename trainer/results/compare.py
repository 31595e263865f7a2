"""`trainer models compare`: two models on the same held-out examples."""

import argparse
import json
from pathlib import Path
from typing import Any

from trainer.data.datasets import Dataset
from trainer.errors import ConfigurationError
from trainer.results import compare_page, named_data, named_model
from trainer.results.classifier import SavedModel, predict
from trainer.results.comparison import Comparison
from trainer.results.named_model import Named, open_model
from trainer.results.report import write_page


def add(commands: Any) -> None:
    """Add the subcommand to those of `trainer models`."""
    compare = commands.add_parser(
        "compare",
        help="compare two models on the same held-out data",
        prog="trainer models compare",
        description="Compare two models on the same held-out data: accuracies with 95 % intervals and McNemar's test,\n"
        "log loss, and the AUC of two classes, with the intervals of their differences.\n"
        "A and B are training directories, export folders, SavedModels or versions in MLflow. The data is that of A's\n"
        "run, or of B's, unless it is named.",
    )
    for name in ("A", "B"):
        compare.add_argument(name, help=named_model.HELP)
    named_data.add_options(compare)
    compare.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with the examples on which they differ"
    )
    compare.add_argument("--json", action="store_true", help="print the comparison as one line of JSON")
    named_model.add_options(compare)
    compare.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        ConfigurationError: a model or the data cannot be read, or they do not fit.
        StoreError: an object store or MLflow does not respond.
    """
    data = named_data.read_options(arguments)
    registry = named_model.read_options(arguments)
    with open_model(arguments.A, "A", registry) as first, open_model(arguments.B, "B", registry) as second:
        found = _compare(first, second, data)
    if arguments.html:
        write_page(arguments.html, compare_page.make(found))
    print(json.dumps(found.to_json()) if arguments.json else _write(found))
    if arguments.html and not arguments.json:
        print(f"\npage  {arguments.html}")
    return 0


def _compare(first: Named, second: Named, data: dict[str, str]) -> Comparison:
    dataset = _load(first, second, data)
    with (
        SavedModel(first.folder, f"A: the model {first.place}") as a,
        SavedModel(second.folder, f"B: the model {second.place}") as b,
    ):
        if a.classes != b.classes:
            raise ConfigurationError(
                f"A: {first.place} knows {a.classes} classes, but B: {second.place} knows {b.classes}; compare models "
                "of the same classes."
            )
        return Comparison((first, second), dataset, predict([a, b], dataset.test), a.class_names)


def _load(first: Named, second: Named, data: dict[str, str]) -> Dataset:
    """The data that the user names, otherwise that of the first run that is known."""
    found = named_data.load(data, first.settings or second.settings)
    if found is None:
        raise ConfigurationError(
            "dataset: neither A nor B is the directory of a run with its settings, so the data is not known; name it "
            "with --dataset and --data_dir."
        )
    return found


def _write(found: Comparison) -> str:
    """The comparison as a table for a terminal."""
    content = found.to_json()
    version = f" version {found.dataset.version}" if found.dataset.version else ""
    width = max(len(each["model"]) for each in content["models"])
    lines = [f"{content['examples']:,} held-out examples of {found.dataset.name}{version}", ""]
    has_auc = all("auc" in each for each in content["models"])
    lines.append(f"   {'model':{width}}  accuracy  95 % interval        right  log loss{'     AUC' if has_auc else ''}")
    for letter, each in zip("AB", content["models"], strict=True):
        low, high = each["interval"]
        lines.append(
            f"{letter}  {each['model']:{width}}  {each['accuracy']:8.4f}  {low:.4f} to {high:.4f}  {each['right']:9,}"
            + f"  {each['log_loss']:8.4f}"
            + (f"  {each['auc']:.4f}" if has_auc else "")
        )
    rows = (
        ("both right", "both_right"),
        ("only A right", "only_first_right"),
        ("only B right", "only_second_right"),
        ("neither right", "neither_right"),
    )
    lines += ["", *(f"   {title:14}{content[name]:9,}" for title, name in rows)]
    return "\n".join([*lines, "", found.conclusion, *found.sentences, *found.warnings])
