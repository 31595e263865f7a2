"""Each row: a model file that `fit` trains is trained to the same result, or refused in one sentence."""

from pathlib import Path

import pytest

from tests.conformance import runner
from tests.conformance.outcomes import DIFFERS, REFUSED
from tests.conformance.rows import MODULES, ROWS, public_classes
from tests.conformance.runner import Reference


def _marks(name: str) -> list[pytest.MarkDecorator]:
    row = ROWS[name]
    return [
        *([pytest.mark.xfail(reason=row.differs, strict=True)] if row.differs else []),
        *([] if row.quick else [pytest.mark.long]),
        *([pytest.mark.timeout(3600)] if name.startswith("applications") else []),
    ]


TRAINED = [pytest.param(name, id=name, marks=_marks(name)) for name, row in ROWS.items() if row.is_trained]


@pytest.mark.parametrize("name", TRAINED)
def test_a_row_is_trained_as_by_keras_or_refused(name: str, tmp_path: Path, reference: Reference) -> None:
    row = ROWS[name]
    assert runner.outcome(row, name.replace(".", "_"), tmp_path, reference) == row.refused


@pytest.mark.parametrize("module", MODULES)
def test_each_public_class_has_a_row(module: str) -> None:
    assert set(public_classes(module)) == set(MODULES[module])


def test_each_outcome_is_of_a_row() -> None:
    assert {*REFUSED, *DIFFERS} <= ROWS.keys()
