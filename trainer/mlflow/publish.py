"""`trainer models publish`: a training directory as a run of MLflow, and its model as a registered version.

The directory has everything, and the command only adds to MLflow what is not there yet. So it can be repeated: while
the run goes on, after its end, and after a failure of the server.
"""

import argparse
import dataclasses
import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

from trainer.data.files import write_atomically
from trainer.errors import ConfigurationError
from trainer.export import export_folder
from trainer.mlflow import mlmodel, publication
from trainer.mlflow.publication import Publication
from trainer.mlflow.server import DESCRIPTION, DIGEST_TAG, LoggedRun, Server, Version
from trainer.run_directory.run import RUNNING_SECONDS, open_directory
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.storage.object_store import ObjectStore
from trainer.text import one_line

STATES = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "silent": "KILLED", "running": "RUNNING"}
"""MLflow's names of the states of a run. One that is silent has been killed, as far as its directory tells."""
IMAGE_DIGEST, IMAGE_DIGEST_TAG = "IMAGE_DIGEST", "image_digest"
"""In Kubernetes, a container's variable can be of a ConfigMap's key that may be absent, and its arguments cannot."""


def add(commands: Any) -> None:
    """Add the subcommand to `trainer models`."""
    publish = commands.add_parser(
        "publish",
        prog="trainer models publish",
        help="log a run to MLflow, and register its model",
        description="Log a run to MLflow: settings, curves, data, result. If it is done, register its exported model\n"
        "as the next version of a registered model. Of a program other than the trainer, log the curves of\n"
        "TensorBoard's event files, and register the newest SavedModel. Repeat it at any time: it adds what is new.",
    )
    publish.add_argument("directory", metavar="DIR", help="training directory, or its URI on an object store")
    publish.add_argument("--tracking_uri", metavar="URI", help="MLflow server (default: MLFLOW_TRACKING_URI)")
    publish.add_argument(
        "--experiment", metavar="NAME", help="experiment of the run (default: MLFLOW_EXPERIMENT_NAME, or Default)"
    )
    publish.add_argument(
        "--model",
        metavar="NAME",
        help="registered model (default: the name of the run's model, or of another program's DIR)",
    )
    pairs: dict[str, Any] = {"metavar": "NAME=VALUE", "action": "append", "default": [], "type": _pair}
    publish.add_argument(
        "--tag",
        **pairs,
        help=f"tag of run and version; repeatable. The variable {IMAGE_DIGEST}, if set, is the tag {IMAGE_DIGEST_TAG}",
    )
    publish.add_argument("--param", **pairs, help="parameter of the run, besides its settings; repeatable")
    publish.add_argument(
        "--done",
        action="store_true",
        help="a program other than the trainer has succeeded; a run of the trainer says so itself",
    )
    publish.add_argument("--json", action="store_true", help="print what was logged as one line of JSON")
    publish.set_defaults(run=run)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=VALUE was expected")
    return name, value


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        ConfigurationError: the directory has nothing to publish or cannot be written, or MLflow refuses the request.
        StoreError: MLflow or an object store does not respond.
    """
    server = Server(arguments.tracking_uri)
    experiment = arguments.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
    with open_directory(arguments.directory, "DIR") as directory:
        found = publication.read(directory, "DIR", arguments.done)
        tags = dict(arguments.tag)
        if digest := os.environ.get(IMAGE_DIGEST):
            tags = {IMAGE_DIGEST_TAG: digest, **tags}
        found = dataclasses.replace(
            found,
            parameters={**found.parameters, **dict(arguments.param)},
            tags={**found.tags, **tags},
            model_tags={**found.model_tags, **tags},
        )
        logged, new, differing = log(found, server, experiment)
        registered = register(found, server, logged, arguments.model or found.model)
    if arguments.json:
        version, is_new = registered or (None, False)
        print(
            json.dumps(
                {
                    "run_id": logged.id,
                    "new_points": new,
                    "model": version.name if version else None,
                    "version": version.number if version else None,
                    "is_new_version": is_new,
                    "differing_settings": differing,
                }
            )
        )
        return 0
    print(f"run     {server.page(logged)}")
    if found.state == "silent":
        minutes = f"{RUNNING_SECONDS / 60:.0f} minutes"
        print(f"state   killed: nothing was written for {minutes}; if the run goes on, publish it again")
    print(f"curves  {new:,} new points")
    if differing:
        present = "; settings.yaml has the present ones" if found.files else ""
        print(f"note    MLflow keeps the first values of {', '.join(differing)}{present}")
    if registered:
        version, is_new = registered
        print(f"model   {version}{'' if is_new else ', registered before'}: {server.model_page(version)}")
    else:
        print(f"model   none: {found.absence}")
    return 0


def log(found: Publication, server: Server, experiment: str) -> tuple[LoggedRun, int, list[str]]:
    """Log a run, except for its model.

    Returns:
        The run, the number of new points of curves, and the names of parameters that had other values before.

    Raises:
        ConfigurationError: MLflow refuses the request, or the training directory cannot be written.
        StoreError: MLflow or an object store does not respond.
    """
    directory = found.directory
    name = Path(str(directory)).name or str(directory)
    logged = server.open_run(experiment, _identify(directory), name, found.start)
    source = {"mlflow.source.name": str(directory), "mlflow.source.type": "LOCAL"}
    differing = server.log(logged, found.parameters, {**source, **found.tags})
    if found.data:
        server.log_data(logged, *found.data)
    new = server.log_curves(logged, found.curves)
    for file in found.files:
        server.upload(logged, file)
    state = STATES[found.state]
    server.set_state(logged, state, None if state == "RUNNING" else found.end)
    return logged, new, differing


def register(found: Publication, server: Server, logged: LoggedRun, model: str) -> tuple[Version, bool] | None:
    """Register the exported model of a run that is done, unless this export is registered already.

    Returns:
        The version, and whether it is new; None if there is no exported model.

    Raises:
        ConfigurationError: the model is damaged, or MLflow refuses the request.
        StoreError: MLflow does not respond.
    """
    if found.export is None:
        return None
    digest = export_folder.digest(found.export, found.not_exported)
    known = server.find_version(model, DIGEST_TAG, digest)
    if known:
        return known, False
    # A training that goes on may export the same step again, and earlier versions keep their files.
    folder = f"export/{found.export.absolute().name}-{digest.partition(':')[2][:12]}"
    with tempfile.TemporaryDirectory() as temporary:
        description = Path(temporary) / DESCRIPTION
        description.write_bytes(mlmodel.make(found.export, logged.id, folder))
        for each in sorted(found.export.iterdir()):
            if each.name not in found.not_exported:
                server.upload(logged, each, f"{folder}/{each.name}" if each.is_dir() else folder)
        server.upload(logged, description, folder)
    return server.register(model, logged, folder, {**found.model_tags, DIGEST_TAG: digest}), True


def _identify(directory: TrainingDirectory) -> str:
    """The identifier of a training directory, which is written on the first call.

    Raises:
        ConfigurationError: it cannot be read or written.
        StoreError: an object store does not respond.
    """
    file = directory.mlflow
    try:
        return uuid.UUID(json.loads(file.read_bytes())["id"]).hex
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"DIR: {file} cannot be read ({one_line(str(error)).rstrip('.')}), and MLflow's run is found again by it; "
            "restore it, or delete it to publish to a new run."
        ) from None
    identifier = uuid.uuid4().hex
    content = (json.dumps({"id": identifier}) + "\n").encode()
    try:
        write_atomically(file, content)
    except OSError as error:
        raise ConfigurationError(
            f"DIR: {file} cannot be written ({error.strerror}), and MLflow's run is found again by it; make the "
            "directory writable."
        ) from None
    if directory.uri:
        ObjectStore(directory.uri, "DIR").upload(file.name, content)
    return identifier
