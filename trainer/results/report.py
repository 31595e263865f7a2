"""`trainer report`: reads a run, lets its exported model predict the held-out split, and writes the page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.config import Parser
from trainer.data.datasets import Dataset
from trainer.data.files import write_atomically
from trainer.errors import ConfigurationError, StoreError
from trainer.results import named_data, report_page
from trainer.results.report_page import Confusion
from trainer.run_directory.run import Run, open_run

PAGE = "report.html"


def main(words: Sequence[str]) -> int:
    """Run `trainer report` with these arguments; return its exit code.

    Raises:
        ConfigurationError: the directory is not that of a run, the named data is not that of the run, or the page
            cannot be written.
        StoreError: an object store does not respond.
    """
    parser = Parser(
        prog="trainer report",
        description="Write one HTML page about a run: result, curves, misread examples, rates, faults, settings.\n"
        "The page needs no network and no other file. The run may be going on, or have failed.\n"
        "If its data is elsewhere now, name it with --data_dir.",
    )
    parser.add_argument("directory", metavar="DIR", help="training directory, or its URI on an object store")
    parser.add_argument(
        "--output", metavar="FILE", help=f"the page, or - for standard output (default: {PAGE} in DIR; for a URI, here)"
    )
    named_data.add_options(parser)
    arguments = parser.read(words)
    with open_run(arguments.directory, "DIR") as run:
        text = report_page.make(run, confusion_of(run, named_data.read_options(arguments)))
        path = Path(arguments.output or (PAGE if run.directory.uri else run.directory.path / PAGE))
        if arguments.output == "-":
            print(text, end="")
            return 0
        write_page(path, text)
    print(path)
    return 0


def write_page(path: Path, text: str) -> None:
    """Write a page.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written ({error.strerror}); name another file.") from None


def confusion_of(run: Run, data: Mapping[str, str]) -> Confusion:
    """Let the exported model predict the held-out split; if it cannot, say why.

    Args:
        run: The run.
        data: What the user has named of its data.

    Raises:
        ConfigurationError: the model cannot predict the data that the user has named.
        StoreError: the object store of that data does not respond.
    """
    if run.export is None:
        when = "the run exports one at its end" if not run.is_done else "the folder export/ lacks it"
        return Confusion(None, [], f"The confusion matrix needs the exported model: {when}.")
    try:
        dataset = named_data.load(data, run.settings)
        if dataset is None:
            return Confusion(None, [], "The confusion matrix needs the settings of the run, and they are not known.")
        _check_digest(run, dataset)
        from trainer.results.classifier import SavedModel, predict  # it imports TensorFlow

        with SavedModel(run.export, f"export: the model {run.export}") as model:
            return Confusion(predict([model], dataset.test), model.class_names)
    except (ConfigurationError, StoreError) as error:
        if data:
            raise
        return Confusion(None, [], f"There is no confusion matrix: {error}")


def _check_digest(run: Run, dataset: Dataset) -> None:
    trained = run.result.get("dataset_digest")
    if trained and dataset.digest and trained != dataset.digest:
        raise ConfigurationError(
            f"the data has changed since the run: its digest is {dataset.digest[:12]}, but the run's is {trained[:12]}."
        )
