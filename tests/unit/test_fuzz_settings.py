"""Any TF_CONFIG, classic flags, cluster file, settings and environment gives a task, or is refused in a sentence."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import examples, merge_bomb, mutations, nest, run_trainer, scalars, structures, yaml_bomb
from trainer import config

pytestmark = pytest.mark.slow

NAMES = config.names(config.TASK_GROUPS)
CLUSTER = {"chief": ["c0:1"], "worker": ["w0:1", "w1:2"], "ps": ["p0:1"], "evaluator": ["e0:1"]}
TF_CONFIG = {"cluster": CLUSTER, "task": {"type": "worker", "index": 1}, "environment": "cloud"}
DEFAULTS = yaml.safe_load(config.to_yaml(config.Settings()))

variables = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["\udcff", "1" * 5000, "0x10", "1e400", "nan", "inf", "true", "[1]", "1_0", "٣", "a\nb", "\x1b[31m"]
)
"""Values of environment variables and flags."""
roles = st.sampled_from([*CLUSTER, "master", "", "Worker"]) | st.text(max_size=6)
addresses = st.sampled_from(["w0:1", "w0:1", ":1", "a:0", "a:65536", "[::1]:9", "a:1:1", "a:٣"]) | st.text(max_size=9)
clusters = st.dictionaries(roles, st.lists(addresses | scalars, max_size=3) | scalars, max_size=4)
tf_configs = (
    st.fixed_dictionaries(
        {},
        optional={
            "cluster": clusters | structures,
            "task": st.fixed_dictionaries({}, optional={"type": roles | scalars, "index": scalars}) | structures,
        },
    )
    | structures
)


def to_yaml(value: Any) -> bytes:
    return bytes(yaml.safe_dump(value).encode())


def to_json(value: Any) -> str:
    """The value as JSON, also with NaN."""
    return json.dumps(value, ensure_ascii=False)


def encodable(text: str) -> str:
    """The text without what no environment variable can hold."""
    return text.replace("\0", "0").encode("utf-8", "replace").decode()


@examples(200)
@given(
    (tf_configs.map(to_json) | mutations([json.dumps(TF_CONFIG).encode()]).map(lambda each: each.decode("latin-1"))),
    st.dictionaries(st.sampled_from(["ps_hosts", "worker_hosts", "job_name", "task_index", "strategy"]), variables),
)
def test_tf_config_and_classic_flags(text: str, flags: dict[str, str]) -> None:
    words = [f"--{name}={encodable(value)}" for name, value in flags.items()]
    run_trainer("train", "--print_config", *words, environment={"TF_CONFIG": encodable(text)})


@examples(150)
@given(
    clusters.map(lambda each: to_json(each).encode("utf-8", "replace"))
    | mutations([json.dumps(CLUSTER).encode()])
    | st.sampled_from([nest(100_000, "[", "]"), nest(100_000, '{"a":', "}"), b"\xff\xfe", b"\0", b""])
)
def test_cluster_files(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "cluster.json"
    path.write_bytes(content)
    run_trainer("train", "--print_config", f"--cluster_file={path}", "--job_name=ps", "--task_index=0")


@st.composite
def settings_files(draw: st.DrawFn) -> bytes:
    """A file of settings, most of them right."""
    names = st.sampled_from(NAMES) | st.text(max_size=6)
    values: dict[Any, Any] = {}
    for name in draw(st.lists(names | scalars, max_size=5)):
        values[name] = draw(structures | variables | st.just(DEFAULTS.get(name)))
    return to_yaml(values)


@examples(200)
@given(
    settings_files()
    | structures.map(to_yaml)
    | mutations([yaml.safe_dump(DEFAULTS).encode()])
    | st.sampled_from(
        [
            *(yaml_bomb(), merge_bomb()),
            *(b"model: " + bomb.replace(b"\n", b"\n  ") for bomb in (b"\n" + yaml_bomb(), b"\n" + merge_bomb())),
            *(nest(5_000, "[", "]"), nest(5_000, "{a: ", "}"), b"model: " + nest(5_000, "[", "]")),
            *(
                b"&a [*a]",
                b"model: &a [*a]",
                b"&a {model: *a}",
                b"? [a]\n: b",
                b"<<: 1",
                b"- a\n-- b",
                b"!!python/none x",
            ),
            *(
                b"\xff",
                b"\0",
                b"train_steps: 1:60:60",
                b"model: 2024-99-99",
                b"seed: 0x" + b"f" * 5000,
                b"a: !!binary x",
            ),
            *(b'train_dir: "\\0"', b'model: "a\\nb.py"', b'cluster_file: "\\0"', b'cluster_file: "\\ud800"'),
        ]
    )
)
def test_settings_files(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "settings.yaml"
    path.write_bytes(content)
    code, printed = run_trainer("train", "--print_config", f"--config={path}")
    if code == 0:
        path.write_text(printed)
        assert run_trainer("train", "--print_config", f"--config={path}") == (0, printed)


@examples(200)
@given(st.dictionaries(st.sampled_from(NAMES), variables, max_size=4))
def test_environments_and_flags(values: dict[str, str]) -> None:
    run_trainer(
        "train", "--print_config", *[f"--{name}={value}" for name, value in values.items() if value != "\udcff"]
    )
    environment = {config.ENVIRONMENT_PREFIX + name.upper(): value for name, value in values.items()}
    run_trainer("train", "--print_config", environment=environment)


@examples(100)
@given(
    st.lists(
        st.sampled_from(["--config", "--model", "-h2", "--", "--print_config", "--a=b", "-"]) | variables, max_size=4
    )
)
def test_words(words: list[str]) -> None:
    run_trainer("train", "--print_config", "--train_steps=0", *words)
    run_trainer("convert-tfjob", *words, "/absent")
    run_trainer(*words[:1], "--absent")
