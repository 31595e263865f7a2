"""Follows a run that publishes its model while it trains: applies each delta between two requests.

A delta that is absent or damaged ends the chain: the model stays as it is, and the next export is loaded. So does the
begin of another chain, and a table that has grown much since its export, as the rows that left it are then dropped.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainer.errors import AbsentError, ConfigurationError
from trainer.export import deltas
from trainer.export.deltas import DamagedError, Delta
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


@dataclass
class _Model:
    """A model in memory, and what it has of the run."""

    predictor: Predictor
    changes: ChangingModel
    export: Path
    written: float
    """When the export was written, in seconds since 1970."""
    chain: str
    number: int
    """The last delta."""
    step: int
    """The global step at which its values were read."""
    seconds: float
    """When that was, in seconds since 1970."""
    is_whole: bool = True
    """Whether no delta has failed halfway."""

    def apply(self, delta: Delta) -> Callable[[], None]:
        """Prepare a delta; return what applies it.

        Raises:
            MismatchError: it does not fit the model.
        """
        if delta.chain != self.chain:
            raise MismatchError("the run has begun another chain")
        change = self.changes.prepare(delta)

        def apply() -> None:
            self.is_whole = False
            change()
            self.number, self.step, self.seconds, self.is_whole = delta.number, delta.step, delta.seconds, True

        return apply


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
        self._held_after: float | None = None
        """After a roll back: only an export that was written later than this is loaded, and no delta applied before."""
        found = deltas.exports(self._exports)
        if not found:
            raise AbsentError(
                f"MODEL={directory}: it has no export that deltas follow; train with publish_seconds, or leave out "
                "--follow."
            )
        self._model = _load(*found[-1])

    def start(self) -> None:
        """Follow the run in a thread, until the process ends."""
        threading.Thread(target=self._follow, name="follower", daemon=True).start()

    @property
    def predictor(self) -> Predictor:
        """The model, for what does not change."""
        return self._model.predictor

    @property
    def version(self) -> Version:
        """What the model has of the run."""
        return Version(self._model.export.name, self._model.number)

    @property
    def step(self) -> int:
        """The global step at which the values of the model were read."""
        return self._model.step

    @property
    def seconds(self) -> float:
        """When that was, in seconds since 1970."""
        return self._model.seconds

    def predict(self, values: Mapping[str, Any]) -> tuple[dict[str, Array], Version]:
        """Predict a batch, as `Predictor.predict`; return what has answered, too."""
        with self._lock.shared():
            return self.predictor.predict(values), self.version

    def roll_back(self) -> None:
        """Go back to the export, or the oldest one if that is gone, and stay there until there is another one."""
        with self._changing:
            found = deltas.exports(self._exports)
            if not found:
                self._report("there is no export to go back to")
                return
            self._held_after = deltas.written(found[-1][0])
            self._use(_load(*next((each for each in found if each[0] == self._model.export), found[0])))
        name = self._model.export.name
        self._report(f"rolled back to the export {name}; the deltas are followed again from the next export on")

    def _use(self, model: _Model) -> None:
        with self._lock.alone():
            before, self._model = self._model, model
        before.predictor.close()

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
            exports = deltas.exports(self._exports)
            newest = exports[-1] if exports else None
            if self._held_after is not None:
                if newest and deltas.written(newest[0]) > self._held_after:
                    self._use(_load(*newest))
                    self._held_after = None
                return
            if newest and (not self._model.is_whole or self._is_of_later_chain(*newest)):
                self._use(_load(*newest))
            is_unbroken = self._apply_all()
            if (
                newest
                and newest[0] != self._model.export
                and (not is_unbroken or self._model.changes.new_share > MOST_NEW)
            ):
                self._load_later(newest)

    def _is_of_later_chain(self, export: Path, chain: str, _: int) -> bool:
        return chain != self._model.chain and deltas.written(export) > self._model.written

    def _apply_all(self) -> bool:
        """Apply the deltas that are there; return whether none is missing, and all fit."""
        numbers = deltas.numbers(self._deltas)
        while numbers and numbers[-1] > self._model.number:
            number = self._model.number + 1
            try:
                apply = self._model.apply(deltas.read(self._deltas, number))
            except FileNotFoundError:
                self._say(f"the delta {number} is gone")
                return False
            except (DamagedError, MismatchError) as error:
                self._say(f"the delta {number} cannot be applied: {error}")
                return False
            with self._lock.alone():
                apply()
            self._said = ""
        return True

    def _load_later(self, newest: tuple[Path, str, int]) -> None:
        """Load an export with the deltas after it, unless it has less than the model then."""
        model = _load(*newest)
        try:
            while model.number < self._model.number:
                model.apply(deltas.read(self._deltas, model.number + 1))()
        except (FileNotFoundError, DamagedError, MismatchError):
            model.predictor.close()
            return
        self._use(model)
        logger.info(f"loaded the export {newest[0].name}")

    def _say(self, why: str) -> None:
        """Say once why the model stays as it is."""
        if why != self._said:
            self._said = why
            self._report(f"{why}: the model stays at {self.version} until the next export")


def _load(export: Path, chain: str, number: int) -> _Model:
    """Load an export.

    Raises:
        ConfigurationError: it is damaged.
        OSError: it is gone.
    """
    written, predictor = deltas.written(export), Predictor(export)
    return _Model(
        predictor, ChangingModel(predictor.session), export, written, chain, number, int(export.name), written
    )
