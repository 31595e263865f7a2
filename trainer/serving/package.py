"""`make package-model`: copies an exported model into the build context, and builds its image with labels.

It writes below dist/models/ and starts the build command; it imports neither TensorFlow nor KServe.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.config import Parser
from trainer.errors import EXIT_CONFIGURATION, ConfigurationError
from trainer.export.export_folder import digest
from trainer.serving import model_folder
from trainer.serving.model_folder import EXPORT, ModelRecord
from trainer.serving.sources import check_name, find_export, name_of, read_data

CONTEXT = Path("dist/models")
"""Where the build context has packaged models."""


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
    parser.add_argument("build", metavar="COMMAND", nargs="+", help="such as: docker build --file images/Dockerfile")
    arguments = parser.parse_args(words)
    export = find_export(arguments.model)
    data = read_data(export)
    name = check_name(arguments.name or name_of(data))
    record, folder = stage(export, name, data, CONTEXT)
    image = f"distributed-tensorflow/model-{record.name}:{record.version}"
    options = ["--target", "model", "--tag", image, "--build-arg", f"MODEL={folder.as_posix()}"]
    for label, value in labels(record).items():
        options += ["--label", f"{label}={value}"]
    try:
        code = subprocess.run([*arguments.build, *options, "."], check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if code == 0:
        print(f"built {image}\nnext: docker run --rm --publish 8080:8080 {image}")
    return code


def stage(export: Path, name: str, data: Mapping[str, str], context: Path) -> tuple[ModelRecord, Path]:
    """Copy what serving needs of an export into the build context; return its record and its folder there.

    The digest is in the folder's name, so that two builds at once do not disturb each other.
    """
    context.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=context))
    # These are for further training.
    shutil.copytree(
        export,
        partial / EXPORT,
        ignore=shutil.ignore_patterns("model.keras", "model.weights.h5"),
        copy_function=shutil.copy,
    )
    record = ModelRecord(name, export.name, digest(partial / EXPORT), data)
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
