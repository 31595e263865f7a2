"""A model with two towers: recall over its whole catalogue, its export, and `trainer models recommend`."""

import csv
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import ndcg_score

from trainer import cli
from trainer.config import Settings
from trainer.data.catalogue import Catalogue
from trainer.data.examples import Array, ArraySpec
from trainer.errors import ConfigurationError
from trainer.evaluate import retrieval
from trainer.evaluate.retrieval import Retrieval
from trainer.export import saved_model
from trainer.models.towers import Tower
from trainer.problem import problem
from trainer.tensorflow import tf, tf1

from .conftest import train_alone

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras

MODEL = textwrap.dedent("""
    import keras
    import numpy as np
    from keras import layers, ops

    USERS, ITEMS = 60, 300

    def data(seed, examples):
        random = np.random.default_rng(seed)
        users = random.integers(0, USERS, examples).astype(np.int32)
        items = (users * 5 + random.integers(0, 8, examples)) % ITEMS
        return {"user": users, "item": items.astype(np.int64) + 2**40}, np.zeros(examples, np.float32)

    def train_data(context):
        return data(1, 4000)

    def test_data(context):
        return data(2, 700)

    def loss(targets, vectors):
        scores = 10 * ops.matmul(vectors[:, 0], ops.transpose(vectors[:, 1]))
        return keras.losses.sparse_categorical_crossentropy(ops.arange(ops.shape(scores)[0]), scores, from_logits=True)

    def model():
        user, item = keras.Input((), dtype="int32", name="user"), keras.Input((), dtype="int64", name="item")
        of_user = layers.UnitNormalization(name="of_user")(layers.Embedding(USERS, 8)(user))
        rows = layers.Embedding(ITEMS, 8)(item - 2**40)
        of_item = layers.UnitNormalization(name="of_item")(layers.Dense(8)(rows))
        network = keras.Model({"user": user, "item": item}, ops.stack([of_user, of_item], axis=1))
        network.compile("adam", loss)
        return network

    def towers(network):
        return tuple(
            keras.Model(network.input[name], network.get_layer(f"of_{name}").output) for name in ("user", "item")
        )

    def candidates(context):
        return np.arange(2**40, 2**40 + ITEMS), [f"item {number}" for number in range(ITEMS)]
""")


def start(tmp_path: Path, source: str, **settings: Any) -> Path:
    """Train a model file; return the training directory."""
    (tmp_path / "towers_model.py").write_text(source)
    given = {"train_steps": 150, "batch_size": 100, **settings}
    run = Settings(model=str(tmp_path / "towers_model.py"), train_dir=str(tmp_path / "run"), **given)
    train_alone(run)
    return tmp_path / "run"


@pytest.fixture(scope="module", params=[100_000, 50], ids=["dense", "tables"])
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return start(tmp_path_factory.mktemp("retrieval"), MODEL, table_rows=request.param)


def exported(run: Path) -> Path:
    """The folder of the export."""
    return run / "export" / Path(json.loads((run / "result.json").read_text())["export"]).name


def embed(run: Path, tower: str, **inputs: Any) -> Array:
    """The vectors that a signature of the export gives."""
    model = saved_model.load(exported(run), "the model", signature=tower)
    with model.session as session:
        return session.run(model.outputs["vectors"], {model.inputs[name]: each for name, each in inputs.items()})  # type: ignore[no-any-return]


def held_out() -> dict[str, Array]:
    """The inputs of the model file's held-out examples."""
    found: dict[str, Any] = {}
    exec(MODEL, found)  # noqa: S102 - our own text
    return found["test_data"](None)[0]  # type: ignore[no-any-return]


@pytest.mark.slow
def test_recall_of_a_run_is_that_of_its_export_over_all_candidates(run: Path) -> None:
    folder = exported(run) / "candidates"
    ids, vectors = np.load(folder / "ids.npy"), np.load(folder / "vectors.npy")
    assert ids.tolist() == list(range(2**40, 2**40 + 300))
    assert np.allclose(vectors, embed(run, "candidate", item=ids), atol=1e-6)
    inputs = held_out()
    queries = embed(run, "query", user=inputs["user"])
    scores = queries @ vectors.T
    taken = inputs["item"] - 2**40
    ranks = 1 + (scores > scores[np.arange(len(taken)), taken][:, None]).sum(axis=1)
    relevance = np.zeros_like(scores)
    relevance[np.arange(len(taken)), taken] = 1
    result = json.loads((run / "result.json").read_text())
    assert result["test_recall_at_10"] == pytest.approx((ranks <= 10).mean(), abs=2e-3)
    assert result["test_recall_at_100"] == pytest.approx((ranks <= 100).mean(), abs=2e-3)
    assert result["test_ndcg_at_10"] == pytest.approx(ndcg_score(relevance, scores, k=10), abs=2e-3)
    assert result["test_mrr"] == pytest.approx((1 / ranks).mean(), abs=2e-3)
    assert result["test_recall_at_10"] > 0.5  # by chance 0.03
    assert result["best_metric"] == "recall_at_10"


@pytest.fixture
def recommend(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the command on a file of queries with this text; returns its exit code, and its error or what it prints."""

    def call(queries: str, *words: str) -> tuple[int, str]:
        (tmp_path / "queries.csv").write_text(queries)
        code = cli.main(["models", "recommend", str(run), "--queries", str(tmp_path / "queries.csv"), *words])
        said = capsys.readouterr()
        return code, said.err if code else said.out

    return call


@pytest.mark.slow
def test_the_candidates_with_the_largest_scores_are_recommended_but_for_those_that_were_seen(
    run: Path, recommend: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    vectors, query = np.load(exported(run) / "candidates/vectors.npy"), embed(run, "query", user=[7, 12])
    orders = np.argsort(-(query @ vectors.T), axis=1)
    code, text = recommend("user,age\n7,30\n12,40\n", "--top", "3")
    assert code == 0
    rows = list(csv.DictReader(text.splitlines()))
    assert [int(each["item"]) - 2**40 for each in rows] == [*orders[0, :3], *orders[1, :3]]
    assert [each["rank"] for each in rows] == ["1", "2", "3"] * 2
    assert [each["user"] for each in rows] == ["7"] * 3 + ["12"] * 3
    assert rows[0]["name"] == f"item {orders[0, 0]}"
    assert float(rows[0]["score"]) == pytest.approx((query @ vectors.T).max(axis=1)[0], abs=1e-5)
    seen = tmp_path / "seen.csv"
    seen.write_text(f"item,user\n{2**40 + orders[0, 0]},7\n{2**40 + orders[0, 2]},7\n{2**40 + orders[1, 0]},8\n5,12\n")
    output = tmp_path / "found.parquet"
    assert recommend("user\n7\n12\n", "--top", "2", "--seen", str(seen), "--output", str(output))[0] == 0
    found = [each - 2**40 for each in pq.read_table(output)["item"].to_pylist()]
    assert found == [orders[0, 1], orders[0, 3], orders[1, 0], orders[1, 1]]
    code, text = recommend("user\n7\n", "--top", "1000")
    assert (code, len(text.splitlines())) == (0, 301)  # all there are


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queries", "words", "expected"),
    [
        ("usr\n7\n", [], "has no column user"),
        ("user\n", [], "has no rows"),
        ("user\nx\n", [], "numbers were expected, not string, such as 'x'"),
        ("user\n99\n", [], "cannot use these values: indices[0] = 99 is not in [0, 60)"),
        ("user\n7\n", ["--seen", "QUERIES"], "it needs a column of the queries (user) and item"),
        ("user\n7\n", ["--seen", "absent.csv"], "there is no absent.csv"),
        ("user\n7\n", ["--output", "/absent/found.csv"], "cannot be written (No such file or directory)"),
        ("user\n7\n", ["--output", "found.txt"], "ends neither in .csv nor in .parquet"),
        ("user\n7\n", ["--top", "0"], "--top"),
    ],
)
def test_bad_queries_get_a_sentence(
    recommend: Callable[..., tuple[int, str]], tmp_path: Path, queries: str, words: list[str], expected: str
) -> None:
    given = [str(tmp_path / "queries.csv") if each == "QUERIES" else each for each in words]
    code, text = recommend(queries, *given)
    assert (code, text.count("\n")) == (2, 1), text
    assert expected in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("return tuple(", "return list(", "towers(network) returned list; return two of Keras's models"),
        ('f"of_{name}")', '"of_nobody")', "towers() failed: "),
        ("network.input[name]", "network.inputs", "returned one array, but the candidate tower takes item, user"),
        ("np.arange(2**40, 2**40 + ITEMS), [", "np.arange(7), [", "returned arrays of 7, 300 candidates"),
        ("np.arange(2**40, 2**40 + ITEMS), [", '{"id": np.arange(300)}, [', "has no item; has id, which"),
        ("np.arange(2**40, 2**40 + ITEMS), [", 'np.array(["a"] * 300), [', "gives item as text [], not int64 []"),
        ("np.arange(2**40, 2**40 + ITEMS), [", "np.full(300, 5), [", "has item 5 twice; return each candidate once"),
        ("return np.arange", "return 1 / 0, np.arange", "candidates() failed: ZeroDivisionError"),
        ("return np.arange", "np.arange", "candidates() returned None; return the inputs of the candidate tower"),
        (
            "return np.arange",
            "return [[1, 2], [3]], np.arange",
            "return the inputs of the candidate tower: an array, or",
        ),
        (
            "np.arange(2**40, 2**40 + ITEMS), [",
            "np.arange(ITEMS) + 0.5, [",
            "item with values that int64 does not have",
        ),
    ],
)
def test_towers_and_candidates_that_do_not_fit_get_a_sentence(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in MODEL
    (tmp_path / "wrong.py").write_text(MODEL.replace(old, new))
    with pytest.raises(ConfigurationError) as failure:
        problem.load(Settings(model=str(tmp_path / "wrong.py")), None)
    assert expected in str(failure.value)


@pytest.mark.parametrize("block", [3, 1 << 14])
def test_ranks_count_equal_scores_half_and_unknown_candidates_as_not_found(
    monkeypatch: pytest.MonkeyPatch, block: int, log_lines: list[str]
) -> None:
    monkeypatch.setattr(retrieval, "BLOCK", block)
    towers = {kind: Tower(None, {"id": ArraySpec((), "string")}) for kind in ("query", "candidate")}
    places = {"a": 3.0, "b": 2.0, "c": 2.0, "d": 1.0, "e": 2.0}
    catalogue = Catalogue({"id": np.array([*places], object)})

    def vectors(kind: Any, given: Any) -> Any:
        value = tf.numpy_function(
            lambda ids: np.array(
                [[places.get(each.decode(), 0.0) if kind == "candidate" else 1.0] for each in ids], np.float32
            ),
            [given["id"]],
            tf.float32,
        )
        return tf.ensure_shape(value, [None, 1])

    with tf.Graph().as_default(), tf1.Session() as session:
        made = Retrieval(towers, catalogue, vectors)  # type: ignore[arg-type]
        rank = made.ranker(session.run, session.run, 2)
        found = rank({"id": np.array([b"a", b"b", b"c", b"e", b"d", b"x"], object)})
    assert found.tolist() == [1, 3, 3, 3, 5, np.inf]
    assert any("candidates() lacks id x of a held-out example" in each for each in log_lines)
    assert retrieval.figures(found)["mrr"] == pytest.approx((1 + 3 / 3 + 1 / 5) / 6)


def test_a_model_that_gives_all_candidates_one_vector_finds_nothing() -> None:
    towers = {kind: Tower(None, {"id": ArraySpec((), "int64")}) for kind in ("query", "candidate")}
    random = np.random.default_rng(0)
    shared = random.normal(size=[1, 24]).astype(np.float32)

    def vectors(kind: Any, given: Any) -> Any:
        return tf.ones([tf.shape(given["id"])[0], 1]) @ shared

    with tf.Graph().as_default(), tf1.Session() as session:
        made = Retrieval(towers, Catalogue({"id": np.arange(5000)}), vectors)  # type: ignore[arg-type]
        found = made.ranker(session.run, session.run, 999)({"id": np.arange(100)})
    assert np.allclose(found, 2500.5)
    assert retrieval.figures(found)["recall_at_100"] == 0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30])
def test_a_model_that_has_diverged_finds_nothing(wrong: float) -> None:
    towers = {kind: Tower(None, {"id": ArraySpec((), "int64")}) for kind in ("query", "candidate")}

    def vectors(kind: Any, given: Any) -> Any:
        return tf.fill([tf.shape(given["id"])[0], 4], np.float32(wrong))

    with tf.Graph().as_default(), tf1.Session() as session:
        made = Retrieval(towers, Catalogue({"id": np.arange(500)}), vectors)  # type: ignore[arg-type]
        found = retrieval.figures(made.ranker(session.run, session.run, 100)({"id": np.arange(20)}))
    assert found == dict.fromkeys(retrieval.NAMES, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["candidates", "towers"])
def test_a_file_with_one_of_the_functions_trains_without_retrieval(
    tmp_path: Path, name: str, log_lines: list[str]
) -> None:
    (tmp_path / "one.py").write_text(MODEL.replace(f"def {name}(", f"def _{name}("))
    assert problem.load(Settings(model=str(tmp_path / "one.py")), None).catalogue is None
    assert any(f"but no {name}(), so retrieval is not measured" in each for each in log_lines)


@pytest.mark.slow
@pytest.mark.parametrize("is_list", [False, True])
def test_a_tower_of_several_inputs_gets_each_by_its_name(tmp_path: Path, is_list: bool) -> None:
    """Keras sorts the keys of a dictionary."""
    kind = 'of_item = layers.UnitNormalization(name="of_item")(layers.Dense(8)(rows))'
    source = MODEL.replace(kind, kind.replace("(rows)", "(layers.Concatenate()([rows, age]))"))
    source = source.replace("    rows = layers", '    age = keras.Input((1,), name="age")\n    rows = layers')
    source = source.replace('"item": item}, ops', '"item": item, "age": age}, ops')
    source = source.replace("np.zeros(examples, np.float32)", "np.zeros(examples, np.float32)").replace(
        "+ 2**40}, np", '+ 2**40, "age": (items[:, None] % 7).astype(np.float32)}, np'
    )
    given = (
        '[network.input["item"], network.input["age"]]'
        if is_list
        else '{"item": network.input["item"], "age": network.input["age"]}'
    )
    source = source[: source.index("def towers")] + textwrap.dedent(f"""
        def towers(network):
            user = keras.Model(network.input["user"], network.get_layer("of_user").output)
            return user, keras.Model({given}, network.get_layer("of_item").output)

        def candidates(context):
            return {{"item": np.arange(ITEMS) + 2**40, "age": (np.arange(ITEMS)[:, None] % 7).astype(np.float32)}}
    """)
    run = start(tmp_path, source)
    ids = np.load(exported(run) / "candidates/ids.npy")
    assert ids.tolist() == list(range(2**40, 2**40 + 300))
    by_name = embed(run, "candidate", item=ids, age=(np.arange(300)[:, None] % 7).astype(np.float32))
    vectors = np.load(exported(run) / "candidates/vectors.npy")
    assert np.allclose(vectors, by_name, atol=1e-6)
    inputs = np.arange(300)
    whole = saved_model.load(exported(run), "the model")
    with whole.session as session:
        feeds = {"user": inputs % 60, "item": ids, "age": (inputs[:, None] % 7).astype(np.float32)}
        (output,) = whole.outputs.values()
        outputs = session.run(output, {whole.inputs[name]: each for name, each in feeds.items()})
    assert np.allclose(outputs[:, 1], vectors, atol=1e-6)
