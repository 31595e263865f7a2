"""Writes columns, some rows at a time, to CSV and Parquet files."""

import contextlib
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.errors import ConfigurationError

PARQUET = ".parquet"


class ColumnWriter:
    """Writes the same columns to files. As a context manager it leaves all of them whole, or none."""

    def __init__(self, files: Sequence[Path], place: Path) -> None:
        """Nothing is written before the first rows.

        Args:
            files: Those whose names end in .parquet are of Parquet, others of CSV.
            place: What the option --output names, for errors.
        """
        self._files, self._place = files, place
        self._stack = contextlib.ExitStack()
        self._writers: list[Any] = []
        self.count = 0
        """The rows so far."""

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            with self.errors():
                self._stack.close()
                for file in self._files:
                    _partial(file).rename(file)
            return
        with contextlib.suppress(OSError):
            self._stack.close()
            for file in self._files:
                _partial(file).unlink(missing_ok=True)

    def add(self, columns: Mapping[str, Any]) -> None:
        """Write some rows of columns by name, each [n].

        Raises:
            ConfigurationError: a file cannot be written.
        """
        import pyarrow as pa

        table = pa.table(dict(columns))
        with self.errors():
            self._writers = self._writers or [self._open(file, table.schema) for file in self._files]
            for file, writer in zip(self._files, self._writers, strict=True):
                if file.suffix == PARQUET:
                    writer.write_table(table)
                else:
                    writer.writerows(zip(*columns.values(), strict=True))
        self.count += len(table)

    def _open(self, file: Path, schema: Any) -> Any:
        import pyarrow.parquet as pq

        if file.suffix == PARQUET:
            return self._stack.enter_context(pq.ParquetWriter(_partial(file), schema))
        opened = _partial(file).open("w", encoding="utf-8", errors="surrogateescape", newline="")
        writer = csv.writer(self._stack.enter_context(opened), lineterminator="\n")
        writer.writerow(schema.names)
        return writer

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert an error of the file system to a sentence."""
        try:
            yield
        except OSError as error:
            raise ConfigurationError(
                f"--output: {self._place} cannot be written ({error.strerror}); name another."
            ) from None


def _partial(file: Path) -> Path:
    return file.with_name(f".{file.name}.partial")
