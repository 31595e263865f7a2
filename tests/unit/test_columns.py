"""What each column of a table is for the packaged model, and the arrays that a model gets."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainer.data.columns import arrays, decide, given, held_out
from trainer.data.columns.choices import Choices
from trainer.data.columns.decide import Values
from trainer.data.columns.plan import Column, Plan, Target, from_json
from trainer.data.examples import ArraySpec
from trainer.errors import ConfigurationError

ROWS = 200
YES_NO = Target("y", ("no", "yes"))


def plan_of(values: dict[str, Any], **choices: Any) -> Plan:
    columns = {name: pa.array(each) for name, each in values.items()}
    columns.setdefault("other", pa.array([float(row % 7) for row in range(ROWS)]))
    columns["y"] = pa.array(["no", "yes"] * (ROWS // 2))
    return decide.plan(pa.table(columns), YES_NO, Choices(**choices), "the table")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.5 * row for row in range(ROWS)], "number"),
        ([row % 5 for row in range(ROWS)], "number"),
        ([row % 2 == 0 for row in range(ROWS)], "number"),
        ([None, *(row % 50 for row in range(1, ROWS))], "number"),
        (["a", "b"] * (ROWS // 2), "category"),
        ([f"{row % 120} main street" for row in range(ROWS)], "hashed"),
        ([f"this is the long text number {row % 150}" for row in range(ROWS)], "text"),
        ([datetime.datetime(2024, 1, 1) + datetime.timedelta(days=row) for row in range(ROWS)], "date"),
        ([[1.0, 2.0]] * ROWS, "vector"),
        ([["red", "blue"][: row % 3] for row in range(ROWS)], "bag"),
        ([[1, 2, 3][: row % 3] for row in range(ROWS)], "bag"),
    ],
)
def test_the_values_decide_what_a_column_is(values: list[Any], kind: str) -> None:
    found = {each.name: each.kind for each in plan_of({"column": values}).inputs}
    assert found == {"column": kind, "other": "number"}


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("constant", [3.0] * ROWS, "each row has 3"),
        ("same", ["a"] * ROWS, "each row has 'a'"),
        ("empty", pa.nulls(ROWS), "it has no values"),
        ("Unnamed: 0", list(range(ROWS)), "an index that pandas writes"),
        ("lists", [[1.0] * (1 + row % 3) for row in range(ROWS)], "from 1 to 3 numbers"),
        ("map", pa.array([{"a": 1}] * ROWS, pa.map_(pa.string(), pa.int64())), "write a column for each key"),
    ],
)
def test_a_column_that_says_nothing_is_left_out_with_the_reason(name: str, values: Any, why: str) -> None:
    found = plan_of({name: values})
    assert [each.name for each in found.inputs] == ["other"]
    assert why in found.left_out[name]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("customer", [f"C{row:05d}" for row in range(ROWS)]),
        ("customer_id", [(row * 7919) % 100_003 for row in range(ROWS)]),
        ("position", list(range(1000, 1000 + ROWS))),
        ("respondent", [row for row in range(2 * ROWS) if row % 5][:ROWS]),  # the others are held out
    ],
)
def test_a_column_like_an_id_is_no_input_and_identifies_the_rows(name: str, values: list[Any]) -> None:
    found = plan_of({name: values})
    assert found.id == name
    assert [each.name for each in found.inputs] == ["other"]
    named = plan_of({name: values}, inputs=(name,))
    assert [each.name for each in named.inputs] == [name]


def test_columns_are_chosen_and_excluded() -> None:
    values = {name: [float(row) for row in range(ROWS)] for name in "abc"}
    assert [each.name for each in plan_of(values, exclude=("b", "other")).inputs] == ["a", "c"]
    assert [each.name for each in plan_of(values, inputs=("c",)).inputs] == ["c"]
    assert plan_of(values, id="a").id == "a"


def test_names_of_columns_that_do_not_exist_are_refused_together() -> None:
    with pytest.raises(ConfigurationError, match=r"inputs=agee .did you mean age.., exclude=cty"):
        decide.check_names({"age": pa.int64(), "y": pa.int64()}, Choices(inputs=("agee",), exclude=("cty",)), "t")


def test_rare_texts_are_no_category_of_their_own() -> None:
    (column, _) = plan_of({"city": ["Graz"] * 100 + ["Wien"] * 98 + ["Linz", "Steyr"]}).inputs
    assert column.categories == ("Graz", "Wien")


@pytest.mark.parametrize(
    ("values", "regression", "classes"),
    [
        (["no", "yes", "no"], None, ("no", "yes")),
        ([True, False], None, ("false", "true")),
        ([0, 1, 1], None, ("0", "1")),
        ([1.0, 0.0, 1.0], None, ("0", "1")),
        ([10, 2, 2], None, ("2", "10")),
        (list(range(50)), None, ()),
        ([0.5, 1.0], None, ()),
        ([-1, 1], None, ()),
        ([0, 1, 1], True, ()),
        ([*range(50), 0], False, tuple(map(str, range(50)))),
        ([1.5, 2.0, 2.5], False, ("1.5", "2", "2.5")),
    ],
)
def test_the_values_of_the_target_decide_whether_it_is_a_class(
    values: list[Any], regression: bool | None, classes: tuple[str, ...]
) -> None:
    column = pa.array(values)
    found = Values(column.type)
    found.add(column.slice(0, 2))
    found.add(column.slice(2))
    target = decide.target_of("y", found, Choices(regression=regression), None, "t")
    assert target.classes == classes
    if not classes:
        assert target.mean == pytest.approx(np.mean(values))
        assert target.stddev == pytest.approx(np.std(values))
    labels = arrays.targets(column, target)
    assert [classes[label] for label in labels] == [decide.label(each) for each in values] if classes else True


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1, 1, 1], "each training row has 1; there is nothing to learn"),
        (["a", "a"], "each training row has a; there is nothing to learn"),
        ([f"K{row}" for row in range(21)], "each of 21 training rows has another one, as those of an id"),
        ([datetime.datetime(2024, 1, 1)], "cannot be predicted"),
        ([[1.0], [2.0]], "cannot be predicted"),
    ],
)
def test_a_target_from_which_nothing_can_be_learnt_is_refused(values: list[Any], sentence: str) -> None:
    found = Values(pa.array(values).type)
    found.add(pa.array(values))
    with pytest.raises(ConfigurationError, match=sentence):
        decide.target_of("y", found, Choices(), None, "t")


def test_infinite_numbers_are_missing_ones() -> None:
    values = [0.5 * row for row in range(ROWS - 3)]
    (found, _) = plan_of({"n": [*values, float("inf"), float("-inf"), 1e39]}).inputs
    assert found.missing == 3
    assert found.mean == pytest.approx(np.mean(values))
    assert plan_of({"n": [float("inf")] * ROWS}).left_out == {"n": "it has no finite values"}


def test_ids_that_are_equal_as_floating_point_numbers_stay_different() -> None:
    ids = [2**53 + row % 3 for row in range(ROWS)]
    plan = plan_of({"user": ids, "negative": [-each for each in ids], "small": [row % 3 for row in range(ROWS)]})
    found = {each.name: each for each in plan.inputs}
    assert found["user"].categories == tuple(map(str, ids[:3]))
    assert (found["negative"].kind, found["small"].kind) == ("category", "number")
    batch = pa.record_batch({each: pa.array(ids) for each in ("user", "negative", "small", "other")})
    assert arrays.inputs(batch, plan, "t")["user"][:3].tolist() == [*map(str, ids[:3])]


def test_labels_keep_the_names_that_the_data_has() -> None:
    names = [f"class {label}" for label in range(30)]
    column = pa.array([29, 0, -1, 5, 30, None])
    assert arrays.are_targets(column, names).tolist() == [True, True, False, True, False, False]
    found = Values(column.type)
    found.add(column.filter(pa.array(arrays.are_targets(column, names))))
    target = decide.target_of("y", found, Choices(), names, "t")
    assert target.classes == tuple(names)
    assert arrays.targets(column.slice(0, 2), target).tolist() == [29, 0]
    specs = {"a": ArraySpec((), "float32"), "b": ArraySpec((), "int64")}
    assert given.plan(TABLE, target, Choices(), specs, "t").target == target


def test_a_rare_class_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    found = Values(pa.string())
    found.add(pa.array(["no"] * 99 + ["yes"]))
    decide.target_of("fraud", found, Choices(), None, "t")
    assert caplog.messages == ["fraud: yes is 1.00% of the rows"]


def test_values_become_arrays_and_missing_ones_what_the_plan_says() -> None:
    day = datetime.datetime(1970, 1, 2)
    batch = pa.record_batch({
        "number": pa.array([1, None, 3]), "text": pa.array(["a", None, "b"]), "date": pa.array([day, None, day]),
        "id": pa.array([2**53 + 1, None, 7]), "vector": pa.array([[1.0, 2.0], [3.0, None], None]),
        "bag": pa.array([["x"], [], ["y", "z"]]), "flag": pa.array([True, None, False]),
    })  # fmt: skip
    columns = (
        Column("number", "number", "float32"), Column("text", "category", "string"), Column("date", "date", "float64"),
        Column("id", "given", "int64", fill=0.0), Column("vector", "vector", "float32", (2,)),
        Column("bag", "bag", "string", (None,)), Column("flag", "given", "float32", fill=0.0),
    )  # fmt: skip
    found = arrays.inputs(batch, Plan(columns, YES_NO), "t")
    nan = np.nan
    np.testing.assert_array_equal(found["number"], np.array([1, nan, 3], np.float32))
    assert found["text"].tolist() == ["a", "", "b"]
    np.testing.assert_array_equal(found["date"], [86_400.0, nan, 86_400.0])
    assert found["id"].tolist() == [2**53 + 1, 0, 7]
    np.testing.assert_array_equal(found["vector"], np.array([[1, 2], [3, nan], [nan, nan]], np.float32))
    assert found["bag"].tolist() == [["x", ""], ["", ""], ["y", "z"]]
    assert found["flag"].tolist() == [1.0, 0.0, 0.0]


def test_another_spelling_of_a_category_is_this_category() -> None:
    column = Column("c", "category", "string", categories=("Yes", "no"))
    batch = pa.record_batch({"c": pa.array(["yes", "No.", "Yes", "perhaps", None, " YES "])})
    (found,) = arrays.inputs(batch, Plan((column,), YES_NO), "t").values()
    assert found.tolist() == ["Yes", "no", "Yes", "perhaps", "", "Yes"]


@pytest.mark.parametrize(
    ("values", "column", "sentence"),
    [
        (["a"], Column("c", "number", "float32"), "t: c: numbers were expected, not string, such as 'a'"),
        ([2**40], Column("c", "given", "int32"), "1099511627776 does not fit the model's input, int32"),
        ([1.5], Column("c", "given", "int64"), "whole numbers were expected"),
        ([[1.0], [1.0, 2.0]], Column("c", "vector", "float32", (1,)), "row 1 has a list of 2, but 1 elements"),
        ([1.0], Column("c", "vector", "float32", (3,)), "lists were expected"),
    ],
)
def test_values_of_another_type_than_the_plan_has_are_refused(values: Any, column: Column, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        arrays.inputs(pa.record_batch({"c": pa.array(values)}), Plan((column,), YES_NO), "t")


@pytest.mark.parametrize("weight", [-1.0, None, float("inf")])
def test_weights_below_zero_or_absent_are_refused(weight: float | None) -> None:
    with pytest.raises(ConfigurationError, match=r"sample_weight=w: t has .* in row 1; numbers from 0 were expected"):
        arrays.weights(pa.array([1.0, weight], pa.float64()), "w", "t")


def test_weights_that_are_texts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="sample_weight=w: t has string, such as 'a'; numbers from 0 were exp"):
        arrays.weights(pa.array(["a"]), "w", "t")


def test_of_many_columns_the_log_has_the_first_ones() -> None:
    inputs = tuple(Column(f"gene_{number}", "number", "float32") for number in range(3000))
    lines = Plan(inputs, YES_NO, left_out={f"left_{number}": "why" for number in range(101)}).lines
    assert len(lines) == 203
    assert "2,900 other inputs, which data.json of the export has" in lines[100]
    assert lines[-1].endswith("left out: 1 others")


def test_a_plan_is_the_same_after_json() -> None:
    plan = plan_of({"city": ["a", "b"] * (ROWS // 2), "v": [[1.0, 2.0]] * ROWS}, exclude=("other",))
    assert from_json(plan.to_json()) == plan


TABLE = pa.table({"a": [1.0, 2.0], "b": [1, 2], "c": ["x", "y"], "v": [[1.0], [2.0]], "y": [0, 1]})
INTEGER_TARGET = Target("y", ("0", "1"))


def test_a_models_inputs_are_columns_by_their_names() -> None:
    specs = {"c": ArraySpec((), "string"), "b": ArraySpec((1,), "int64"), "v": ArraySpec((1,), "float32")}
    plan = given.plan(TABLE, INTEGER_TARGET, Choices(), specs, "t")
    assert [(each.name, each.dtype, each.shape) for each in plan.inputs] == [
        ("c", "string", ()), ("b", "int64", (1,)), ("v", "float32", (1,)),
    ]  # fmt: skip
    assert plan.left_out == {"a": "the model has no input of this name"}


@pytest.mark.parametrize("specs", [None, {"inputs": ArraySpec((2,), "float32")}])
def test_a_model_with_one_unnamed_input_gets_all_numbers(specs: Any) -> None:
    plan = given.plan(TABLE, INTEGER_TARGET, Choices(), specs, "t")
    (found,) = arrays.inputs(TABLE, plan, "t").values()
    assert found.tolist() == [[1.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        ({"v": ArraySpec((), "float32"), "a": ArraySpec((), "float32")}, "v is list<.*let the input have a dimension"),
        ({"a": ArraySpec((3,), "float32"), "b": ArraySpec((), "float32")}, "a is double.*let the input have the shape"),
        ({"x": ArraySpec((5,), "float32")}, "the columns of numbers are a vector of 2 .a, b.; let it have this size"),
    ],
)
def test_inputs_that_are_no_columns_are_refused(specs: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        given.plan(TABLE, INTEGER_TARGET, Choices(), specs, "t")


def test_inputs_without_a_column_are_named_beside_the_columns() -> None:
    specs = {"a": ArraySpec((), "float32"), "agee": ArraySpec((), "float32")}
    with pytest.raises(
        ConfigurationError, match=r"inputs agee .did you mean age\?. are no columns of it; it has a, age"
    ):
        given.check_inputs(specs, ["a", "age"], "t")
    given.check_inputs({"x": ArraySpec((2,), "float32")}, ["a", "age"], "t")


def test_a_vector_has_the_order_of_the_inputs_and_no_index() -> None:
    table = TABLE.append_column("Unnamed: 0", pa.array([0, 1]))
    assert given.plan(table, INTEGER_TARGET, Choices(), None, "t").reads == ["a", "b"]
    chosen = given.plan(table.select(["a", "b", "y"]), INTEGER_TARGET, Choices(inputs=("b", "a")), None, "t")
    assert chosen.reads == ["b", "a"]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [(("1", "3"), ("0", "1", "2", "3")), (("-1", "1"), ("-1", "1")), (("5", str(10**12)), ("5", str(10**12)))],
)
def test_whole_numbers_are_labels_of_a_models_own_unless_they_are_negative_or_large(
    classes: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert given.plan(TABLE, Target("y", classes), Choices(), None, "t").target.classes == expected


@pytest.mark.parametrize("rows", [2, 3, 10, 150, 1000, 5000])
def test_some_rows_are_held_out_and_of_each_class_the_same_share(rows: int) -> None:
    targets = np.arange(rows) % 10 // 9  # a tenth of them is 1
    found = held_out.choose(targets, is_class=True)
    assert 1 <= found.sum() <= max(1, rows // 5)
    if rows >= 150:
        assert targets[found].mean() == pytest.approx(0.1, abs=0.04)
    np.testing.assert_array_equal(found, held_out.choose(targets, is_class=True))


def test_a_class_of_two_rows_has_one_that_is_held_out() -> None:
    targets = np.array([0] * 998 + [1] * 2 + [2])
    found = held_out.choose(targets, is_class=True)
    assert (found.sum(), np.bincount(targets[found]).tolist()) == (200, [199, 1])


def test_a_column_of_splits_names_the_held_out_rows() -> None:
    values = pa.chunked_array([["train", "test", None, "Validation", "val", "values", "eval"]])
    assert held_out.by_column(values).tolist() == [False, True, False, True, True, False, True]
