"""`make package-model`: copies an exported model into the build context, and builds its image with labels.

It writes below dist/models/ and starts the build command; it imports neither TensorFlow nor KServe.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trainer.config import Parser
from trainer.errors import EXIT_CONFIGURATION, ConfigurationError
from trainer.serving import model_folder
from trainer.serving.model_folder import EXPORT, SAVED_MODEL, ModelRecord

CONTEXT = Path("dist/models")
"""Where the build context has packaged models."""
DOCKERFILE = "images/model/Dockerfile"
NAME = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PLACES = {"npz": "dataset_uri", "lance": "dataset_uri", "train_data": "model"}
"""The facts that say more than the name of a data set: the place of its files, or the file of the model that has it."""


def main(words: Sequence[str]) -> int:
    """Build the image of a model with these arguments; return the exit code of the build.

    Raises:
        ConfigurationError: there is no model, or it needs a name.
    """
    parser = Parser(
        prog="python -m trainer.serving.package",
        description="Build the image of one exported model, by a build command that gets labels, tag and context.",
    )
    parser.add_argument("model", metavar="MODEL", type=Path, help="the directory of a run, or an export folder")
    parser.add_argument("--name", help="the model's name in URLs (default: that of its data)")
    parser.add_argument("build", metavar="COMMAND", nargs="+", help="such as: docker build")
    arguments = parser.parse_args(words)
    export = find_export(arguments.model)
    data = read_data(export)
    name = arguments.name or name_of(data)
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"NAME={name}: a name of at most 63 small letters, digits and dashes was expected, as in NAME=digits."
        )
    record, folder = stage(export, name, data, CONTEXT)
    image = f"distributed-tensorflow/model-{record.name}:{record.version}"
    options = ["--file", DOCKERFILE, "--tag", image, "--build-arg", f"MODEL={folder.as_posix()}"]
    for label, value in labels(record).items():
        options += ["--label", f"{label}={value}"]
    try:
        code = subprocess.run([*arguments.build, *options, "."], check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if code == 0:
        print(f"built {image}\nnext: docker run --rm --publish 8080:8080 {image}")
    return code


def find_export(place: Path) -> Path:
    """The export folder that a user has named: itself, or the one that a run has written last.

    Raises:
        ConfigurationError: there is none.
    """
    if (place / SAVED_MODEL).is_file():
        found = place.resolve()
    else:
        exports = {path.name: path for path in _exports(place)}
        if not exports:
            raise ConfigurationError(
                f"MODEL={place}: it has no exported model; name the directory of a run that is done, or its "
                "export/STEP folder."
            )
        last = PurePosixPath(str(_read_json(place / "result.json").get("export", ""))).name
        found = exports.get(last) or max(exports.values(), key=lambda path: int(path.name))
    if not found.name.isdigit():
        raise ConfigurationError(
            f"MODEL={place}: the folder {found.name} has no step in its name; name a folder such as export/2000."
        )
    return found


def _exports(place: Path) -> Iterator[Path]:
    for path in [*place.glob("*"), *place.glob("export/*")]:
        if path.name.isdigit() and (path / SAVED_MODEL).is_file():
            yield path


def read_data(export: Path) -> dict[str, str]:
    """The facts about the data and the model of an export; empty if it has none."""
    return {name: str(value) for name, value in _read_json(export / "data.json").items() if value is not None}


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"MODEL: {path} cannot be read ({error}); copy the run again.") from None


def name_of(data: Mapping[str, str]) -> str:
    """The name of the model by default: that of the data set, or of the file or folder that it is in.

    Raises:
        ConfigurationError: the data has no name.
    """
    name = data.get("dataset", "")
    if name in PLACES:
        name = PurePosixPath(data.get(PLACES[name], "")).stem
    if not name:
        raise ConfigurationError("NAME: the export does not say what data it was trained on; give NAME=digits.")
    return name.lower().replace("_", "-")


def stage(export: Path, name: str, data: Mapping[str, str], context: Path) -> tuple[ModelRecord, Path]:
    """Copy what serving needs of an export into the build context; return its record and its folder there.

    The digest is in the folder's name, so that two builds at once do not disturb each other.
    """
    context.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=context))
    # `model.keras` is for further training.
    shutil.copytree(export, partial / EXPORT, ignore=shutil.ignore_patterns("model.keras"), copy_function=shutil.copy)
    record = ModelRecord(name, export.name, model_folder.digest(partial / EXPORT), data)
    model_folder.write(partial, record)
    for path in [partial, *partial.rglob("*")]:  # the server has another user
        path.chmod(0o755 if path.is_dir() else 0o644)
    folder = context / f"{name}-{record.version}-{record.digest.partition(':')[2][:16]}"
    shutil.rmtree(folder, ignore_errors=True)
    return record, partial.rename(folder)


def labels(record: ModelRecord) -> dict[str, str]:
    """The labels of the image, by name."""
    known = {
        "model": record.data.get("model"),
        "model-digest": record.digest,
        "data": record.data.get("dataset_uri") or record.data.get("dataset"),
        "data-version": record.data.get("dataset_version"),
        "data-digest": record.data.get("dataset_digest"),
    }
    own = {f"distributed-tensorflow/{name}": value for name, value in known.items() if value}
    return {
        "org.opencontainers.image.title": record.name,
        "org.opencontainers.image.version": record.version,
        **own,
    }


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ConfigurationError as error:
        print(f"package-model: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIGURATION)
