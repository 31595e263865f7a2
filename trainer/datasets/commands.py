"""The subcommands of `trainer data`: their arguments, and what they print."""

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer import config
from trainer.data.columns.choices import Choices
from trainer.data.skipped import DEFAULT_LIMIT, parse_limit
from trainer.datasets import comparison, importing, tags, versions
from trainer.datasets.check import Rules
from trainer.datasets.images import Shape
from trainer.datasets.importing import APPEND, CREATE, OVERWRITE, Progress, Request
from trainer.datasets.source import TEST, TRAIN
from trainer.datasets.statistics import Statistics
from trainer.errors import ConfigurationError
from trainer.storage import lance_dataset
from trainer.text.command_lines import command_line

LISTED_CLASSES = 50
"""How many classes the text of `stats` and `diff` lists; JSON has all."""


def parser() -> config.Parser:
    """The parser of the arguments."""
    found = config.Parser(
        prog="trainer data",
        description="Make versions of data from raw files, name and compare them. A version is one of a Lance\n"
        "dataset, and --dataset lance --data_version VERSION trains on it.\n"
        "URI is a path, or the address on an object store, such as s3://bucket/digits.lance, whose credentials\n"
        "are in the environment (AWS_ACCESS_KEY_ID, ...).",
    )
    commands = found.add_subparsers(metavar="COMMAND", required=True, dest="command")
    _add_import(commands)
    _add(commands, "versions", "list the versions: number, time, tags, rows, and what made them", "URI")
    command = _add(
        commands, "tag", "give a version a name, move a name to another version, or delete it", "URI", "NAME"
    )
    command.add_argument(
        "version", metavar="VERSION", nargs="?", help="a number or a tag (default: the newest version)"
    )
    command.add_argument("--force", action="store_true", help="move the tag if another version has it")
    command.add_argument("--delete", action="store_true", help="delete the tag; the version stays")
    command = _add(commands, "stats", "show the statistics of a version: rows, classes, values, image sizes", "URI")
    command.add_argument("--data_version", metavar="VERSION", help="a number or a tag (default: the newest version)")
    _add(commands, "diff", "show the rows that B has and A has not, and the reverse", "URI", "A", "B")
    return found


def _add(commands: Any, name: str, what: str, *arguments: str) -> config.Parser:
    command: config.Parser = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    known = {"URI": "the dataset", "NAME": "the tag", "A": "a version, by its number or tag", "B": "another version"}
    for each in arguments:
        command.add_argument(each.lower(), metavar=each, help=known[each])
    command.add_argument("--json", action="store_true", help="print JSON")
    return command


def _add_import(commands: Any) -> None:
    command: config.Parser = commands.add_parser(
        "import",
        help="write raw files as a new version of a dataset",
        description="Write raw files as a new version of a Lance dataset, in batches. SOURCE is one of:\n"
        "  a folder of IDX files            as of MNIST: NAME-images-idx3-ubyte(.gz) and NAME-labels-idx1-ubyte(.gz)\n"
        "  a folder of .npz files           y and arrays of inputs; files named test... are the held-out split\n"
        "  a folder of folders of images    one for each class, or such folders in train/ and test/\n"
        "  CSV or Parquet files             a file, or a folder of them; the columns stay as they are\n"
        "The version is there when all is written, and not before.",
    )
    command.add_argument("source", metavar="SOURCE", type=Path, help="a file or a folder")
    command.add_argument("uri", metavar="URI", help="the dataset; it must not exist without one of these two:")
    mode = command.add_mutually_exclusive_group()
    for name, what in ((APPEND, "add the rows to the newest version, or create the dataset"),
                       (OVERWRITE, "the new version has these rows alone; earlier versions stay")):  # fmt: skip
        mode.add_argument(f"--{name}", action="store_const", dest="mode", const=name, default=CREATE, help=what)
    command.add_argument("--tag", metavar="NAME", help="name the new version")
    command.add_argument("--force", action="store_true", help="move the tag if another version has it")
    command.add_argument("--note", metavar="TEXT", help="what `trainer data versions` shows (default: the source)")
    command.add_argument(
        "--max_skipped",
        metavar="N",
        type=parse_limit,
        default=DEFAULT_LIMIT,
        help="how many rows may be unusable: damaged images, NaN, wrong labels; more end the import (default: "
        f"{DEFAULT_LIMIT})",
    )
    command.add_argument(
        "--split",
        choices=(TRAIN, TEST),
        help="the split of all rows (default: what the source says, or --test_fraction)",
    )
    command.add_argument(
        "--test_fraction",
        metavar="X",
        type=_fraction,
        default=0.1,
        help="the part of the rows to hold out, chosen by their content, if the source has no splits (default: 0.1)",
    )
    command.add_argument(
        "--image_size",
        metavar="HEIGHTxWIDTHxCHANNELS",
        type=_shape,
        help="convert all images to this size, as PNG; channels: 1, 3 or 4 (default: they must have one size)",
    )
    command.add_argument(
        "--target", metavar="COLUMN", help="CSV, Parquet: the column to predict (default: target, label or y)"
    )
    command.add_argument(
        "--inputs",
        metavar="A,B,...",
        type=lambda text: text.split(","),
        default=[],
        help="CSV, Parquet: the other columns to import (default: all)",
    )
    command.add_argument(
        "--regression",
        action="store_true",
        help="CSV, Parquet: the target is a value, although it is a whole number (default: a class, if at most 20 "
        "different ones from 0 are there)",
    )
    command.add_argument(
        "--delimiter",
        metavar="CHARACTER",
        type=_delimiter,
        help="CSV: what separates the columns, such as tab (default: of , ; tab and | what the header has most)",
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def _delimiter(text: str) -> str:
    found = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(found) != 1 or found in '"\r\n':
        raise argparse.ArgumentTypeError(f"{text!r}, but one character or tab was expected")
    return found


def _fraction(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) < 1:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}, but a number from 0 to below 1 was expected")


def _shape(text: str) -> Shape:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})x([134])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text}, but HEIGHTxWIDTHxCHANNELS was expected, such as 64x64x3")
    return Shape(*map(int, match.groups()))


def run(arguments: argparse.Namespace, progress: Progress) -> None:
    """Run a subcommand.

    Raises:
        ConfigurationError: an argument is wrong.
        StoreError: the object store does not respond.
    """
    commands: Mapping[str, Callable[[argparse.Namespace, Progress], tuple[Any, str]]] = {
        "import": _import,
        "versions": _versions,
        "tag": _tag,
        "stats": _stats,
        "diff": _diff,
    }
    found, text = commands[arguments.command](arguments, progress)
    print(json.dumps(found, indent=2) if arguments.json else text)


def _open(uri: str, version: str | None = None) -> Any:
    lance_dataset.check_access(uri, "URI")
    return lance_dataset.open_dataset(uri, version, uri)


def _import(arguments: argparse.Namespace, progress: Progress) -> tuple[Any, str]:
    request = Request(
        arguments.source,
        arguments.uri,
        arguments.mode,
        Choices(arguments.target, tuple(arguments.inputs), regression=arguments.regression or None),
        arguments.delimiter,
        Rules(arguments.image_size, None, arguments.split, arguments.test_fraction),
        arguments.max_skipped,
        arguments.tag,
        arguments.force,
        arguments.note,
    )
    found = importing.run(request, progress)
    for each in found["first_skipped"]:
        print(f"skipped {each}", file=sys.stderr)
    if found["skipped"] > len(found["first_skipped"]):
        print(f"… and {found['skipped'] - len(found['first_skipped'])} more", file=sys.stderr)
    tag = f" ({arguments.tag})" if arguments.tag else ""
    place = ("--data_dir", arguments.uri, "--data_version", found["version"])
    return found, (
        f"{arguments.uri}: version {found['version']}{tag} has {found['rows']:,} new rows, {found['skipped']} skipped, "
        f"in {found['seconds']:.1f} s\n"
        f"train on it: {command_line('trainer', 'launch', '--dataset', 'lance', *place)}"
    )


def _versions(arguments: argparse.Namespace, progress: Progress) -> tuple[Any, str]:
    found = versions.listed(_open(arguments.uri), arguments.uri)
    rows = [
        (str(each["version"]), each["time"], ",".join(each["tags"]), f"{each['rows']:,}", each["note"])
        for each in found
    ]
    return found, _table(("version", "time", "tags", "rows", "made by"), rows)


def _tag(arguments: argparse.Namespace, progress: Progress) -> tuple[Any, str]:
    uri, name = arguments.uri, arguments.name
    dataset = _open(uri, arguments.version)
    if arguments.delete:
        if arguments.version:
            raise ConfigurationError(f"--delete: the version {arguments.version} was given; a tag has one; remove it.")
        tags.delete_tag(dataset, uri, name)
        return {"uri": uri, "tag": name, "version": None}, f"{uri}: the tag {name} is deleted"
    tags.set_tag(dataset, uri, name, dataset.version, arguments.force)
    return {"uri": uri, "tag": name, "version": dataset.version}, f"{uri}: version {dataset.version} has the tag {name}"


def _stats(arguments: argparse.Namespace, progress: Progress) -> tuple[Any, str]:
    dataset = _open(arguments.uri, arguments.data_version)
    found = versions.statistics(dataset)
    return {"uri": arguments.uri, "version": dataset.version, **found.to_json()}, _describe(
        f"{arguments.uri}, version {dataset.version}", found
    )


def _describe(what: str, found: Statistics) -> str:
    lines = [f"{what}: {found.rows:,} rows, {found.bytes:,} bytes"]
    classes = sorted({each for counts in found.splits.values() for each in counts}, key=_order)
    splits = sorted(found.splits, reverse=True)  # train, test
    rows = [(each or "(no class)", *(f"{found.splits[split][each]:,}" for split in splits)) for each in classes]
    rows = [*rows[:LISTED_CLASSES], ("all", *(f"{sum(found.splits[split].values()):,}" for split in splits))]
    lines.append(_table(("class", *splits), rows))
    if found.values:
        values = [
            (name, *(f"{value:.6g}" for value in (each.mean, each.std, each.min, each.max)))
            for name, each in found.values.items()
        ]
        lines.append(_table(("values", "mean", "std", "min", "max"), values))
    if found.images:
        lines.append(_table(("image size", "images"), [(key, f"{each:,}") for key, each in found.images.most_common()]))
    return "\n\n".join(lines)


def _diff(arguments: argparse.Namespace, progress: Progress) -> tuple[Any, str]:
    before, after = _open(arguments.uri, arguments.a), _open(arguments.uri, arguments.b)
    found = comparison.compare(before, after)
    keys = {
        (split, each) for groups in (found.added, found.removed) for split, counts in groups.items() for each in counts
    }
    rows = [
        (split, each, *(f"{groups.get(split, {}).get(each, 0):,}" for groups in (found.added, found.removed)))
        for split, each in sorted(keys, key=lambda key: (key[0] != TRAIN, key[0], _order(key[1])))
    ]
    added, removed = (
        sum(sum(counts.values()) for counts in groups.values()) for groups in (found.added, found.removed)
    )
    text = (
        f"{arguments.uri}, version {before.version} to {after.version}: {added:,} rows added, {removed:,} removed, "
        f"{found.unchanged:,} unchanged"
    )
    if rows:
        text += "\n\n" + _table(("split", "class", "added", "removed"), rows[:LISTED_CLASSES])
    return {
        "uri": arguments.uri,
        "before": before.version,
        "after": after.version,
        "rows_added": added,
        "rows_removed": removed,
        "rows_unchanged": found.unchanged,
        "added": found.added,
        "removed": found.removed,
    }, text


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (sys.maxsize, name)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text; columns of numbers are aligned at the right."""
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(re.fullmatch(r"[-+\d.,e]+", cell) for cell in column[1:]) and len(column) > 1 for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (heads, *rows)
    )
