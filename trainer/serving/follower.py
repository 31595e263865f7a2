"""Follows a run that publishes its model while it trains: applies each delta between two requests.

A delta that is absent or damaged ends the chain: the model stays as it is, and the next export is loaded. So does the
begin of another chain, and a table that has grown much since its export, as the rows that left it are then dropped.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainer.errors import AbsentError, ConfigurationError
from trainer.export import deltas
from trainer.export.deltas import DamagedError
from trainer.serving.changing_model import ChangingModel, MismatchError
from trainer.serving.predictor import Array, Predictor
from trainer.serving.shared_lock import SharedLock
from trainer.tensorflow.errors import brief

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
MOST_NEW = 0.5
"""The share of rows that came after the export of a table, from which on another export is loaded."""


class Version(NamedTuple):
    """What a model has of a run."""

    export: str
    """The step of the export."""
    number: int
    """The last delta."""

    def __str__(self) -> str:
        return f"{self.export}.{self.number}"


class Follower:
    """The model of a run. Requests share it; the thread that follows the run changes it alone."""

    def __init__(self, directory: Path, report: Callable[[str], None]) -> None:
        """Load the newest export of the run that a chain of deltas begins with.

        Args:
            directory: The training directory.
            report: Gets sentences on what cannot be followed.

        Raises:
            AbsentError: there is no such export.
            ConfigurationError: it is damaged.
        """
        self._exports, self._deltas = directory / "export", directory / deltas.FOLDER
        self._report, self._said = report, ""
        self._lock, self._changing = SharedLock(), threading.Lock()
        self.step, self.seconds = 0, 0.0
        """The global step at which the values of the model were read, and when, in seconds since 1970."""
        self._predictor: Predictor | None = None
        self._written = 0.0
        """When the export was written, in seconds since 1970."""
        self._is_held = False
        """Whether the model was rolled back, so that no delta is applied before another export is there."""
        found = deltas.exports(self._exports)
        if not found:
            raise AbsentError(
                f"MODEL={directory}: it has no export that deltas follow; train with publish_seconds, or leave out "
                "--follow."
            )
        self._load(*found[-1])

    def start(self) -> None:
        """Follow the run in a thread, until the process ends."""
        threading.Thread(target=self._follow, name="follower", daemon=True).start()

    def _load(self, export: Path, chain: str, number: int) -> None:
        seconds, predictor, before = export.stat().st_mtime, Predictor(export), self._predictor
        model = ChangingModel(predictor.session)
        with self._lock.alone():
            self._predictor, self._model = predictor, model
            self._export, self._chain, self._number = export, chain, number
            self.step, self.seconds, self._written = int(export.name), seconds, seconds
            if before:
                before.close()

    @property
    def predictor(self) -> Predictor:
        """The model, for what does not change."""
        assert self._predictor  # noqa: S101 - there is one from the start
        return self._predictor

    @property
    def version(self) -> Version:
        """What the model has of the run."""
        return Version(self._export.name, self._number)

    def predict(self, values: Mapping[str, Any]) -> tuple[dict[str, Array], Version]:
        """Predict a batch, as `Predictor.predict`; return what has answered, too."""
        with self._lock.shared():
            return self.predictor.predict(values), self.version

    def roll_back(self) -> None:
        """Go back to the export, and stay there until another one is there."""
        with self._changing:
            found = deltas.exports(self._exports)
            if not found:
                self._report("there is no export to go back to")
                return
            self._is_held = True
            self._load(*next((each for each in found if each[0] == self._export), found[0]))  # its own may be gone
        self._report(
            f"rolled back to the export {self._export.name}; the deltas are followed again from the next export on"
        )

    def _follow(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            try:
                self.catch_up()
            except ConfigurationError as error:
                self._say(str(error).rstrip("."))
            except Exception as error:  # such as a volume that is away
                self._say(f"{self._deltas} cannot be followed now ({brief(error)})")

    def catch_up(self) -> None:
        """Apply all deltas that are there, and load another export if it is necessary."""
        with self._changing:
            self._catch_up()

    def _catch_up(self) -> None:
        if self._is_held:
            self._load_newer()
            return
        numbers = deltas.numbers(self._deltas)
        while numbers and numbers[-1] > self._number:
            if not self._apply(self._number + 1):
                self._load_newer()
                return
        if self._model.new_share > MOST_NEW:
            self._load_newer()

    def _apply(self, number: int) -> bool:
        """Apply a delta; return whether that worked."""
        try:
            delta = deltas.read(self._deltas, number)
            if delta.chain != self._chain:
                raise MismatchError("the run has begun another chain")
            apply = self._model.prepare(delta)
        except FileNotFoundError:
            self._say(f"the delta {number} is gone")
            return False
        except (DamagedError, MismatchError) as error:
            self._say(f"the delta {number} cannot be applied: {error}")
            return False
        with self._lock.alone():
            apply()
            self._number = number
            self.step, self.seconds = delta.step, delta.seconds
        self._said = ""
        return True

    def _load_newer(self) -> None:
        """Load the newest export, if it is another one and has no less than the model."""
        found = [each for each in deltas.exports(self._exports) if each[0] != self._export]
        newest = max(found, key=lambda each: each[0].stat().st_mtime, default=None)
        if newest and newest[0].stat().st_mtime > self._written:
            self._load(*newest)
            self._is_held = False
            logger.info(f"loaded the export {newest[0].name}")

    def _say(self, why: str) -> None:
        """Say once why the model stays as it is."""
        if why != self._said:
            self._said = why
            self._report(f"{why}: the model stays at {self.version} until the next export")
