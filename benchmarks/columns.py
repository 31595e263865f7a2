"""The packaged network for columns beside scikit-learn's logistic or ridge regression, on ten tables, by defaults.

Each table is split once: neither program sees the test rows. The trainer gets a CSV file of the others, holds some of
these out for itself, and predicts the test rows by `trainer models predict`.

    .venv/bin/python -m benchmarks.columns [TABLE …]
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets, metrics
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Table:
    """Rows of numbers and texts, [n][columns], the last of which is the target."""

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]
    is_class: bool


def _of_arrays(arrays: tuple[Any, Any], is_class: bool) -> Table:
    x, y = arrays
    names = [f"x{index}" for index in range(x.shape[1])]
    rows = [
        [f"{value:.6g}" for value in row] + [f"c{label}" if is_class else f"{label:.6g}"]
        for row, label in zip(x, y, strict=True)
    ]
    return Table([*names, "y"], rows, is_class)


def _bundled(load: Any, is_class: bool = True) -> Callable[[], Table]:
    return lambda: _of_arrays(load(return_X_y=True), is_class)


def _made(**options: Any) -> Callable[[], Table]:
    return lambda: _of_arrays(datasets.make_classification(random_state=1, **options), True)


def _customers(target: str, *without: str) -> Callable[[], Table]:
    def load() -> Table:
        with (ROOT / "examples" / "customers.csv").open(encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        names = [name for name in found[0] if name not in (target, *without)] + [target]
        return Table(names, [[row[name] for name in names] for row in found], target == "churn")

    return load


TABLES: dict[str, Callable[[], Table]] = {
    "iris": _bundled(datasets.load_iris),
    "wine": _bundled(datasets.load_wine),
    "breast cancer": _bundled(datasets.load_breast_cancer),
    "digits": _bundled(datasets.load_digits),
    "diabetes": _bundled(datasets.load_diabetes, is_class=False),
    "customers, churn": _customers("churn"),
    "customers, fee": _customers("fee"),
    "imbalanced": _made(n_samples=5000, n_features=15, n_informative=6, weights=[0.97], class_sep=0.7),
    "wide": _made(n_samples=1500, n_features=500, n_informative=20),
    "small": _made(n_samples=120, n_features=8, n_informative=4),
}


def sklearn_predictions(table: Table, train: Any, test: Any) -> tuple[Any, Sequence[str]]:
    """What a linear model predicts for the test rows: probabilities and their classes, or values."""
    columns = list(zip(*train, strict=True))[:-1]
    kinds = [_kind(column) for column in columns]
    numbers = [index for index, kind in enumerate(kinds) if kind == "number"]
    texts = [index for index, kind in enumerate(kinds) if kind == "text"]
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=5), texts),
    )
    x, y = np.array([row[:-1] for row in train], object), [row[-1] for row in train]
    given = np.array([row[:-1] for row in test], object)
    for each in (x, given):
        for index, kind in enumerate(kinds):
            if kind == "number":
                each[:, index] = [float(value) if value else np.nan for value in each[:, index]]
            elif kind == "date":
                each[:, index] = [
                    float(np.datetime64(value).astype("datetime64[D]").astype(int)) for value in each[:, index]
                ]
    dates = [index for index, kind in enumerate(kinds) if kind == "date"]
    if dates:
        prepare.transformers.append(("dates", StandardScaler(), dates))
    estimator = LogisticRegression(max_iter=5000) if table.is_class else RidgeCV(np.logspace(-3, 3, 13))
    model = make_pipeline(prepare, estimator).fit(x, y if table.is_class else np.array(y, float))
    return (model.predict_proba(given), list(model.classes_)) if table.is_class else (model.predict(given), [])


def _kind(column: Sequence[str]) -> str:
    present = [each for each in column if each]
    try:
        [float(each) for each in present]
        return "number"
    except ValueError:
        if all(len(each) == 10 and each[4] == "-" for each in present):
            return "date"
        return "id" if len(set(present)) > 0.95 * len(present) else "text"


def trainer_predictions(table: Table, train: Any, test: Any, folder: Path) -> tuple[Any, Sequence[str]]:
    """What the packaged network predicts for the test rows, by the commands of a user."""
    _write(folder / "train.csv", table.names, train)
    _write(folder / "new.csv", table.names[:-1], [row[:-1] for row in test])
    run = folder / "run"
    for words in (
        ["launch", "--data", folder / "train.csv", "--target", table.names[-1], "--train_dir", run],
        ["models", "predict", run, "--data", folder / "new.csv", "--output", folder / "predictions"],
    ):
        subprocess.run(
            [sys.executable, "-m", "trainer", *map(str, words)], check=True, cwd=ROOT, stdout=subprocess.PIPE
        )
    with (folder / "predictions" / "predictions.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    if not table.is_class:
        return np.array([float(row["prediction"]) for row in found]), []
    names = [name.removeprefix("probability_") for name in found[0] if name.startswith("probability_")]
    return np.array([[float(row[f"probability_{name}"]) for name in names] for row in found]), names


def score(table: Table, predicted: Any, classes: Sequence[str], test: Any) -> float:
    """The AUC (of one class against the others, on average), or R²."""
    truth = [row[-1] for row in test]
    if not table.is_class:
        return float(metrics.r2_score(np.array(truth, float), predicted))
    hot = np.array([[label == name for name in classes] for label in truth])
    if len(classes) == 2:
        return float(metrics.roc_auc_score(hot[:, 1], predicted[:, 1]))
    return float(metrics.roc_auc_score(hot, predicted, average="macro"))


def _write(file: Path, names: Sequence[str], rows: Any) -> None:
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(names)
        writer.writerows(rows)


def split(table: Table, seed: int = 0) -> tuple[Any, Any]:
    """The rows for both programs, and the test rows, a quarter."""
    labels = [row[-1] for row in table.rows] if table.is_class else None
    train, test = train_test_split(list(table.rows), test_size=0.25, random_state=seed, stratify=labels)
    return train, test


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=[*TABLES], metavar="TABLE", help=", ".join(TABLES))
    print(
        "| table | rows | columns | measure | scikit-learn | trainer | difference |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    )
    for name in parser.parse_args().tables:
        table = TABLES[name]()
        train, test = split(table)
        linear = score(table, *sklearn_predictions(table, train, test), test)
        with tempfile.TemporaryDirectory() as folder:
            own = score(table, *trainer_predictions(table, train, test, Path(folder)), test)
        measure = "AUC" if table.is_class else "R²"
        print(
            f"| {name} | {len(table.rows):,} | {len(table.names) - 1} | {measure} "
            f"| {linear:.3f} | {own:.3f} | {own - linear:+.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
