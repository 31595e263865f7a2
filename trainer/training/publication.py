"""Publishes the model of a run while it trains, for servers that follow it (`trainer serve --follow`).

Each N seconds the chief writes a delta: the dense parameters, and the rows of tables that have changed since the delta
before (`trainer.export.deltas`). A chain of deltas begins with an export. The rows that have changed are those that a
checkpoint would have, by their marks. Once the deltas since an export are large, another export follows, and what is
older than two of them is removed.
"""

import contextlib
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainer.checkpoint.background import Background
from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.saver import Snapshot
from trainer.checkpoint.table_files import Changes, Table
from trainer.dynamic.ids import NO_ID
from trainer.errors import SupersededError
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.export import deltas
from trainer.export.deltas import CHAIN, NUMBER, Delta, RowChanges
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.tensorflow.errors import brief

logger = logging.getLogger(__name__)

LEAST_DELTAS, MOST_DELTAS = 20, 1000
"""The deltas after which another export follows, at least if they are large, and at most."""
SHARE = 0.5
"""What deltas may have of the bytes of their export."""
KEPT_EXPORTS = 2
POLL_SECONDS = 0.2
RETRY_SECONDS = 30.0
"""How long to wait after something has failed."""
STOP_SECONDS = 10.0
"""How long the end of a session waits for a snapshot, which a parameter server that is away may hold up."""


class Publication:
    """The chain of a run's deltas and exports. Any session of the run goes on with another chain."""

    def __init__(
        self,
        seconds: float,
        directory: TrainingDirectory,
        make_evaluator: Callable[[], CheckpointEvaluator],
        facts: Mapping[str, Any],
        averaged: bool,
    ) -> None:
        """Publish each `seconds`.

        Args:
            seconds: The least time between two deltas.
            directory: The training directory.
            make_evaluator: Makes what exports checkpoints.
            facts: Those of an export.
            averaged: Whether the model has the averages of `use_ema`.
        """
        self._seconds, self._directory, self._facts, self._averaged = seconds, directory, facts, averaged
        self._make_evaluator = make_evaluator
        self._evaluator: CheckpointEvaluator | None = None
        self._export_thread: threading.Thread | None = None
        self._thread: threading.Thread | None = None
        """It publishes also while the replicas wait for examples."""
        self._ended = threading.Event()
        """Whether this thread ends."""
        self._needs_export = True
        self._next = 0.0
        self._chain = ""
        self._since: int | None = None
        """The period of tables with which the last delta ended; None if the next one would lack earlier ones."""
        exported = [number for _, _, number in deltas.exports(directory.exports)]
        self._number = max([0, *deltas.numbers(directory.deltas), *exported])
        """That of the last delta."""
        self._step: int | None = None
        """The global step of the last delta of this session; None before the first."""
        self._next_export = 0.0
        self._bytes, self._count, self._export_bytes = 0, 0, 0
        """Of the deltas since the last export: their bytes and their number; and the bytes of this."""

    def begin(self, checkpoints: CheckpointManager, writing: Background) -> None:
        """Publish in a thread, beginning another chain, until `stop`.

        Args:
            checkpoints: Those of this session.
            writing: The thread that writes them.
        """
        self._chain, self._since, self._needs_export, self._step = secrets.token_hex(8), None, True, None
        self._ended = threading.Event()
        own = checkpoints, writing, self._ended
        self._thread = threading.Thread(target=self._run, args=own, name="publication", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more in this session."""
        self._ended.set()
        if self._thread:
            self._thread.join(STOP_SECONDS)

    def _run(self, checkpoints: CheckpointManager, writing: Background, ended: threading.Event) -> None:
        while not ended.wait(min(self._seconds, POLL_SECONDS)):
            try:
                if not writing.is_busy:
                    self._publish_if_due(checkpoints)
            except SupersededError:  # the main thread finds it by itself
                return
            except Exception as error:  # such as a parameter server that is away: then the session ends
                self._next = time.monotonic() + max(self._seconds, RETRY_SECONDS)
                if not ended.is_set():
                    logger.warning(f"nothing is published now: {brief(error)}")

    def _publish_if_due(self, checkpoints: CheckpointManager) -> None:
        """Begin to write a delta, or an export with which deltas begin, if it is time for it."""
        now, chain = time.monotonic(), self._chain
        if now < self._next:
            return
        is_exporting = self._export_thread is not None and self._export_thread.is_alive()
        has_begun = False
        if (self._needs_export or self._is_long()) and not is_exporting and now >= self._next_export:
            has_begun = checkpoints.save_beside(
                self._directory.publishing, lambda path, found: self._begin_export(path, found, chain)
            )
        elif self._since is not None:
            has_begun = checkpoints.read_changes(self._since, self._write)
        if has_begun:
            self._next = now + self._seconds

    def publish_last(self, checkpoints: CheckpointManager, wait: Callable[[], None]) -> None:
        """Write what has changed since the last delta, after `stop`. `wait` waits for what is written."""
        wait()
        if self._since is not None:
            try:
                checkpoints.read_changes(self._since, self._write)
            except SupersededError:
                raise
            except Exception as error:
                logger.warning(f"the last changes are not published: {brief(error)}")
            wait()

    def _is_long(self) -> bool:
        """Whether there is much since the last export."""
        is_large = self._count >= LEAST_DELTAS and self._bytes > SHARE * self._export_bytes > 0
        return is_large or self._count >= MOST_DELTAS

    def _begin_export(self, checkpoint: str, snapshot: Snapshot, chain: str) -> None:
        """Export a checkpoint in another thread. Rows that change after its snapshot are in the next delta.

        That has those which have changed since the delta before the snapshot too.
        """
        if self._since is None:
            self._since = snapshot.period
        self._bytes = self._count = 0
        self._needs_export = False
        facts = {**self._facts, CHAIN: chain, NUMBER: self._number}
        self._export_thread = threading.Thread(
            target=self._export, args=(checkpoint, facts), name="export", daemon=True
        )
        self._export_thread.start()

    def _export(self, checkpoint: str, facts: Mapping[str, Any]) -> None:
        try:
            if self._evaluator is None:
                self._evaluator = self._make_evaluator()
            self._evaluator.restore(checkpoint)
            export = self._directory.exports / checkpoint.rpartition("-")[2]
            export.parent.mkdir(exist_ok=True)
            self._evaluator.export(export, facts, is_for_servers=True)
            self._export_bytes = sum(each.stat().st_size for each in export.rglob("*") if each.is_file())
            logger.info(f"published {self._directory.public(export)}; servers that follow it go on with the next delta")
            self._remove_old()
        except Exception as error:  # training continues, and the next export may be written
            self._needs_export, self._next_export = True, time.monotonic() + RETRY_SECONDS
            logger.warning(f"the model is not published: {brief(error)}")
        finally:
            shutil.rmtree(self._directory.publishing, ignore_errors=True)

    def _write(self, snapshot: Snapshot) -> None:
        """Write a delta."""
        tables = {
            table.name: changes for table, found in snapshot.changes() if len((changes := _of(table, found)).values)
        }
        if not tables and snapshot.step == self._step:  # the run waits for examples
            self._since = snapshot.period
            return
        arrays = snapshot.parameters(self._averaged)
        delta = Delta(self._chain, self._number + 1, snapshot.step, time.time(), arrays, tables)
        try:
            self._bytes += deltas.write(self._directory.deltas, delta)
        except OSError as error:
            logger.warning(f"a delta is not written ({error.strerror}); the next one has its changes")
            return
        self._number, self._count, self._since = delta.number, self._count + 1, snapshot.period
        self._step = snapshot.step

    def _remove_old(self) -> None:
        """Remove the exports of chains before the last ones, and the deltas that these have."""
        found = deltas.exports(self._directory.exports)
        with contextlib.suppress(OSError):
            for export, _, _ in found[:-KEPT_EXPORTS]:
                shutil.rmtree(export)
            least = min(number for _, _, number in found[-KEPT_EXPORTS:])
            for number in deltas.numbers(self._directory.deltas)[
                :-1
            ]:  # the last one has the number from which to go on
                if number <= least:
                    deltas.path(self._directory.deltas, number).unlink(missing_ok=True)

    def end(self) -> None:
        """Wait for the export in progress, and close what exports."""
        if self._export_thread:
            self._export_thread.join()
        if self._evaluator:
            self._evaluator.__exit__()


def _of(table: Table, changes: Changes) -> RowChanges:
    """The changes of a table without optimizer slots."""
    values = table.values(changes.values)[:, : table.dim]
    if not table.grows:
        return RowChanges(values, rows=changes.rows)
    ids = changes.values["id"]
    is_there = ids != NO_ID
    return RowChanges(values[is_there], ids=ids[is_there])
