"""An MLflow server: its runs, files and registered models. The only module that imports `mlflow`.

Credentials come from the environment, as for MLflow's own client (`MLFLOW_TRACKING_USERNAME` and
`MLFLOW_TRACKING_PASSWORD`, or `MLFLOW_TRACKING_TOKEN`).
"""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainer.errors import AbsentError, ConfigurationError, StoreError
from trainer.export import export_folder
from trainer.text import installation, one_line, truncate

DIRECTORY_TAG = "training_directory_id"
"""The tag by which the run of a training directory is found again."""
TRACKING_URI = "MLFLOW_TRACKING_URI"
"""The variable with the address of the server."""
REGISTERED = "models:"
"""How the URIs of registered models begin."""
DIGEST_TAG = "export_digest"
"""The tag of a version with the digest of its export, by which the same export is not registered twice."""
DESCRIPTION = "MLmodel"
"""MLflow's description of a model, a file beside the export."""
_MLFLOWS_OWN = (DESCRIPTION, "registered_model_meta")
"""The files of a version that its export does not have: the second one is from MLflow's client."""
METRICS_PER_REQUEST = 1000
PARAMETERS_PER_REQUEST = 100
LONGEST_PARAMETER = 6000
"""MLflow's limit for the value of a parameter."""
LONGEST_DIGEST = 36
"""MLflow's limit for the digest of a data set."""
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A failed request is repeated after 0, 2, 4, 8 and 16 seconds. MLflow's own default is minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    # In seconds, for each of them; MLflow's own default is 120.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
"""Environment variables of MLflow's client, unless they are set."""


_PERMANENT = re.compile(r"\[SSL: |BadStatusLine|not in a valid JSON format|failed with error code 4(?!08|29)")
"""In what MLflow's client says of a server that speaks another protocol, or is not MLflow's."""


Point = tuple[int, float, float]
"""Of a curve: global step, time in seconds since the epoch, value."""


@dataclass(frozen=True)
class LoggedRun:
    """A run on the server."""

    id: str
    experiment: str
    """The identifier of its experiment."""
    parameters: Mapping[str, str]
    files: str
    """The URI of its files."""


@dataclass(frozen=True)
class Version:
    """A version of a registered model."""

    name: str
    number: str
    run: str | None
    tags: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.name} version {self.number}"


class Server:
    """An MLflow server."""

    def __init__(self, uri: str | None) -> None:
        """Prepare the client. The first call connects.

        Args:
            uri: The address, by default that of the environment variable MLFLOW_TRACKING_URI.

        Raises:
            ConfigurationError: the address is missing or wrong, or MLflow's client is not installed.
        """
        setting = "tracking_uri" if uri else TRACKING_URI
        uri = uri or os.environ.get(TRACKING_URI, "")
        if not uri:
            raise ConfigurationError(
                "tracking_uri: the MLflow server is not known; name it, as in --tracking_uri http://mlflow:5000, or in "
                f"the variable {TRACKING_URI}."
            )
        if not re.fullmatch(r"https?://[^/?#@\s][^?#@\s]*", uri):  # do not show it: errors would, and logs
            raise ConfigurationError(
                f"{setting}: http://HOST:PORT or https://HOST was expected, without a user, a password or a query; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, for credentials."
            )
        self.uri = uri.rstrip("/")
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        try:
            import mlflow
            import requests
        except ImportError as error:
            raise ConfigurationError(
                f"{setting}={self.uri}: the Python package {error.name} is not installed: run "
                f"{installation.command('mlflow')}."
            ) from None
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it logs each repeated request
        self._mlflow: Any = mlflow
        self._refusals: Any = mlflow.exceptions.MlflowException
        self._failures: Any = (requests.exceptions.RequestException, ConnectionError, TimeoutError)
        with contextlib.suppress(ImportError):  # MLflow may let its clients write files to S3
            import boto3.exceptions
            import botocore.exceptions

            self._failures += (boto3.exceptions.Boto3Error, botocore.exceptions.BotoCoreError)
        # A client with an address is not enough: models:/ URIs are resolved by the default.
        mlflow.set_tracking_uri(self.uri)
        mlflow.set_registry_uri(self.uri)
        self._client: Any = mlflow.MlflowClient()

    def open_run(self, experiment: str, directory: str, name: str, start: float) -> LoggedRun:
        """Find the run of a training directory in an experiment; create what does not exist.

        Args:
            experiment: Its name.
            directory: The identifier of the training directory.
            name: The name of a new run.
            start: When a new run has started, in seconds since the epoch.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        with self._answers():
            if self._client.get_experiment_by_name(experiment) is None:
                with self._unless_it_exists():
                    self._client.create_experiment(experiment)
            identifier = self._client.get_experiment_by_name(experiment).experiment_id
            if not identifier:
                raise self._error(404, "it does not know experiments")
            runs = self._client.search_runs([identifier], f"tags.{DIRECTORY_TAG} = '{directory}'")
            run = (
                runs[0]
                if runs
                else self._client.create_run(identifier, int(start * 1000), {DIRECTORY_TAG: directory}, name)
            )
            return LoggedRun(run.info.run_id, identifier, run.data.params, run.info.artifact_uri)

    def log(self, run: LoggedRun, parameters: Mapping[str, str], tags: Mapping[str, str]) -> list[str]:
        """Log parameters and tags. Tags replace earlier ones; MLflow never changes a parameter.

        Returns:
            The names of the parameters that have another value on the server.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        from mlflow.entities import Param, RunTag

        parameters = {name: truncate(value, LONGEST_PARAMETER) for name, value in parameters.items()}
        new = [Param(name, value) for name, value in parameters.items() if name not in run.parameters]
        with self._answers():
            for start in range(0, len(new), PARAMETERS_PER_REQUEST):
                self._client.log_batch(run.id, params=new[start : start + PARAMETERS_PER_REQUEST])
            self._client.log_batch(run.id, tags=[RunTag(name, value) for name, value in tags.items()])
        return [name for name, value in parameters.items() if run.parameters.get(name, value) != value]

    def log_curves(self, run: LoggedRun, curves: Mapping[str, Iterable[Point]]) -> int:
        """Log the points of curves that the server does not have; return their number.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        from mlflow.entities import Metric

        count = 0
        with self._answers():
            for tag, curve in curves.items():
                name = _metric_name(tag)
                known = {(each.step, each.timestamp) for each in self._client.get_metric_history(run.id, name)}
                new = [
                    Metric(name, value, int(time * 1000), step)
                    for step, time, value in curve
                    if (step, int(time * 1000)) not in known
                ]
                for start in range(0, len(new), METRICS_PER_REQUEST):
                    self._client.log_batch(run.id, new[start : start + METRICS_PER_REQUEST])
                count += len(new)
        return count

    def log_data(self, run: LoggedRun, name: str, digest: str, source: str | None) -> None:
        """Log the data set on which a run trains.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(name, digest[:LONGEST_DIGEST], "uri" if source else "code", source or name)
        with self._answers():
            self._client.log_inputs(run.id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def upload(self, run: LoggedRun, path: Path, folder: str | None = None) -> None:
        """Copy a file, or what is in a folder, to a folder of a run.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        with self._answers():
            copy = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
            copy(run.id, str(path), folder)

    def set_state(self, run: LoggedRun, state: str, end: float | None) -> None:
        """Set the state of a run: RUNNING, FINISHED, FAILED or KILLED, and when it ended in seconds since the epoch.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        with self._answers():
            if end is None:
                self._client.update_run(run.id, state)
            else:
                self._client.set_terminated(run.id, state, int(end * 1000))

    def find_version(self, name: str, tag: str, value: str) -> Version | None:
        """The version of a registered model that has a tag; None if there is none.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        return next((each for each in self._versions(name) if each.tags.get(tag) == value), None)

    def register(self, name: str, run: LoggedRun, folder: str, tags: Mapping[str, str]) -> Version:
        """Register files of a run as the next version of a model, which is created if it does not exist.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        with self._answers():
            with self._unless_it_exists():
                self._client.create_registered_model(name)
            return _version(self._client.create_model_version(name, f"{run.files}/{folder}", run.id, dict(tags)))

    def registered_models(self) -> list[str]:
        """The names of all registered models.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        return [each.name for each in self._all(self._client.search_registered_models)]

    def version(self, uri: str, argument: str) -> Version:
        """Find a version by its URI, models:/NAME/VERSION or models:/NAME@ALIAS.

        Args:
            uri: The URI.
            argument: What names it, for errors.

        Raises:
            AbsentError: there is no such version.
            ConfigurationError: the URI is wrong.
            StoreError: the server does not respond.
        """
        match = re.fullmatch(r"models:/(?P<name>[^/@:'\"]+)(/(?P<number>\d+)|@(?P<alias>[\w-]+))", uri)
        if not match:
            raise ConfigurationError(
                f"{argument}: {truncate(uri, 100)}: models:/NAME/VERSION or models:/NAME@ALIAS was expected."
            )
        name, alias = match["name"], match["alias"]
        with self._answers():
            try:
                found = (
                    self._client.get_model_version_by_alias(name, alias)
                    if alias
                    else self._client.get_model_version(name, match["number"])
                )
                if not found.name:
                    raise self._error(404, "it does not know registered models")
                return _version(found)
            except self._refusals as error:
                if error.get_http_status_code() not in (400, 404):
                    raise
                raise AbsentError(
                    f"{argument}: {uri} does not exist on {self.uri} ({_reason(str(error))}); name another version."
                ) from None

    def download(self, version: Version, argument: str, folder: Path) -> Path:
        """Copy the SavedModel of a version into a folder; return its folder.

        Raises:
            ConfigurationError: the server refuses it, or the version is not a SavedModel, or not as it was registered.
            StoreError: the server does not respond.
        """
        uri = f"models:/{version.name}/{version.number}"
        with self._answers():
            copy = Path(self._mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder)))
        export = next((file.parent for file in sorted(copy.rglob(export_folder.SAVED_MODEL))), None)
        if export is None:
            raise ConfigurationError(f"{argument}: {uri} is not a SavedModel of TensorFlow; name another version.")
        registered, found = version.tags.get(DIGEST_TAG, ""), export_folder.digest(export, _MLFLOWS_OWN)
        # Versions from before this digest have another one, without the name of the hash.
        if registered.startswith("sha256:") and registered != found:
            raise ConfigurationError(
                f"{argument}: {uri} is incomplete or altered: its digest is {found}, but that of the registered model "
                f"is {registered}; register it again."
            )
        return export

    def download_file(self, run: str, name: str, folder: Path) -> Path | None:
        """Copy a file of a run into a folder; None if the run does not have it.

        Raises:
            ConfigurationError: the server refuses it.
            StoreError: the server does not respond.
        """
        with self._answers():
            if not any(each.path == name for each in self._client.list_artifacts(run)):
                return None
            return Path(self._client.download_artifacts(run, name, str(folder)))

    def page(self, run: LoggedRun) -> str:
        """The address of the page of a run."""
        return f"{self.uri}/#/experiments/{run.experiment}/runs/{run.id}"

    def model_page(self, version: Version) -> str:
        """The address of the page of a version."""
        return f"{self.uri}/#/models/{quote(version.name)}/versions/{version.number}"

    @contextlib.contextmanager
    def _unless_it_exists(self) -> Iterator[None]:
        """Ignore that something exists, which another client may have created at the same time."""
        try:
            yield
        except self._refusals as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _versions(self, name: str) -> list[Version]:
        return [*map(_version, self._all(self._client.search_model_versions, f"name = '{name}'"))]

    def _all(self, search: Callable[..., Any], *words: str) -> list[Any]:
        """What a search finds, from all of its pages."""
        found: list[Any] = []
        token = None
        with self._answers():
            while True:
                page = search(*words, page_token=token)
                found += page
                if not (token := page.token):
                    return found

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        """Turn errors of MLflow's client into one sentence with its text, and into what may or may not recover."""
        try:
            yield
        except self._refusals as error:
            raise self._error(error.get_http_status_code(), str(error)) from None
        except self._failures as error:
            response = getattr(error, "response", None)
            raise self._error(503 if response is None else response.status_code, str(error)) from None
        except OSError as error:
            raise ConfigurationError(
                f"{error.filename or 'a file'} cannot be used ({error.strerror or error})."
            ) from None
        except ImportError as error:  # of the store of its files, such as S3
            raise ConfigurationError(
                f"tracking_uri={self.uri}: MLflow keeps files where only the Python package {error.name} reads them; "
                "install it, or start the server with --artifacts-destination, so that it serves them itself."
            ) from None

    def _error(self, status: int, text: str) -> ConfigurationError | StoreError:
        reason = _reason(text)
        if (status >= 500 or status in (408, 429)) and not _PERMANENT.search(text):
            return StoreError(
                f"tracking_uri={self.uri}: MLflow does not respond ({reason}); nothing is lost: run the command again "
                "when it does."
            )
        return ConfigurationError(
            f"tracking_uri={self.uri}: MLflow refuses the request ({reason}); check the address, the credentials and "
            "the names."
        )


def _reason(text: str) -> str:
    return truncate(one_line(text).rstrip("."), 500)


def _metric_name(tag: str) -> str:
    """A name that MLflow accepts: it has fewer characters than TensorBoard, and is a path in its simplest form."""
    parts = re.sub(r"[^\w\-. /]", "_", tag).split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "_"


def _version(found: Any) -> Version:
    return Version(found.name, str(found.version), found.run_id or None, found.tags)
