"""Settings: sources, precedence, validation and error messages."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import merge_bomb, yaml_bomb
from trainer import config, mode
from trainer.config import Settings, StepRange
from trainer.errors import ConfigurationError

Read = Callable[..., Settings]


def parser() -> config.Parser:
    built = config.Parser(prog="trainer train", description="")
    config.add_settings(built, config.TASK_GROUPS)
    return built


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A function that loads settings from command-line words, an environment and the text of a file."""

    def settings(*words: str, environment: Mapping[str, str] | None = None, file: str | None = None) -> Settings:
        path = tmp_path / "file.yaml"
        if file is not None:
            path.write_text(file)
            words = (*words, "--config", str(path))
        return config.load(parser().read(words), environment or {})

    return settings


def error_of(read: Read, *words: str, environment: Mapping[str, str] | None = None, file: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(*words, environment=environment, file=file)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_command_line_wins_over_environment_over_file_over_default(read: Read) -> None:
    environment = {"TRAINER_TRAIN_STEPS": "30"}
    assert read().train_steps == 2000
    assert read(file="train_steps: 20").train_steps == 20
    assert read(file="train_steps: 20", environment=environment).train_steps == 30
    assert read("--train_steps", "40", file="train_steps: 20", environment=environment).train_steps == 40


def test_sources_are_merged(read: Read) -> None:
    found = read("--batch_size=7", environment={"TRAINER_SEED": "5"}, file="hidden_units: 9")
    assert found == Settings(batch_size=7, seed=5, hidden_units=9)


def test_a_run_lends_its_settings_to_the_process_that_continues_it(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(
        f"{{model: cnn, epochs: 3, train_steps: 60, job_name: worker, train_dir: {tmp_path}}}"
    )
    given = argparse.Namespace(config=None, train_dir=str(tmp_path), seed="5")
    settings = config.load(given, {}, continues=True)
    assert settings == Settings(model="cnn", epochs=3, train_steps=60, train_dir=str(tmp_path), seed=5)
    longer = config.load(given, {"TRAINER_TRAIN_STEPS": "100"}, continues=True)
    assert (longer.model, longer.epochs, longer.train_steps) == ("cnn", 0, 100)
    assert config.load(given, {}) == Settings(train_dir=str(tmp_path), seed=5)


def test_a_value_that_equals_its_default_is_given(read: Read) -> None:
    assert read().given == frozenset()
    assert read(file="{train_steps: 2000, batch_size: 100}").given == {"train_steps", "batch_size", "epochs"}
    assert read("--train_steps=2000", file="epochs: 3").epochs == 0
    assert read("--epochs=3", file="train_steps: 2000").epochs == 3
    assert read(file="{train_steps: 2000, epochs: 3}").epochs == 3


def test_null_in_a_file_is_the_default(read: Read) -> None:
    assert read(file="{train_steps: null, num_gpus: null}") == Settings()
    assert read(file="train_steps: null").given == frozenset()


def test_a_file_of_all_settings_gives_those_that_were_given(read: Read, tmp_path: Path) -> None:
    of_run = dataclasses.replace(read("--seed=5"), train_steps=45, epochs=3, batch_size=64)  # by the model's file
    file = tmp_path / "written.yaml"
    file.write_text(config.to_yaml(of_run))
    assert config.load_file(file) == of_run
    assert config.load_file(file).given == {"seed"}
    again = config.load(argparse.Namespace(config=file), {})
    assert again == Settings(seed=5)
    assert again.given == {"seed"}


def test_an_empty_environment_variable_is_not_set(read: Read) -> None:
    assert read(environment={"TRAINER_SEED": ""}) == Settings()


@pytest.mark.parametrize("words", [["--train-steps", "5"], ["--train_steps", "5"], ["--train-steps=5"]])
def test_dashes_equal_underscores(read: Read, words: list[str]) -> None:
    assert read(*words).train_steps == 5


def test_dashes_in_a_value_are_kept(read: Read) -> None:
    found = read("--ps-hosts=my-ps-0:1,my-ps-1:1", "--train-dir", "/a-b/c-d", "--model=--x-y")
    assert found.ps_hosts == "my-ps-0:1,my-ps-1:1"
    assert found.train_dir == "/a-b/c-d"
    assert found.model == "--x-y"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None),
        (["--sync_replicas"], True),
        (["--sync-replicas"], True),
        (["--sync_replicas=True"], True),
        (["--sync_replicas", "true"], True),
        (["--sync_replicas=False"], False),
        (["--sync_replicas", "false"], False),
        (["--sync_replicas", "--seed", "1"], True),
    ],
)
def test_a_boolean_option_has_an_optional_value(read: Read, words: list[str], expected: bool | None) -> None:
    assert read(*words).sync_replicas is expected


def test_the_command_line_can_unset_a_boolean_of_the_file(read: Read) -> None:
    assert read("--sync_replicas=false", file="sync_replicas: true").sync_replicas is False


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], False),
        (["--model=mine.py"], True),
        (["--model=mine.py", "--sync_replicas=false"], False),
        (["--model=cnn", "--sync_replicas"], True),
        (["--model=mine.py", "--strategy=allreduce"], False),
        (["--model=mine.py", "--local_steps=4"], True),
    ],
)
def test_a_model_of_ones_own_is_trained_synchronously_by_default(read: Read, words: list[str], expected: bool) -> None:
    assert mode.averages(read(*words)) is expected


def test_the_defaults_match_the_classic_program_except_rate_and_length() -> None:
    settings = Settings()
    assert settings.hidden_units == 100
    assert settings.batch_size == 100
    assert settings.learning_rate == 0.003
    assert settings.train_steps == 2000
    assert not mode.averages(settings)
    assert settings.replicas_to_aggregate is None  # all workers


def test_every_setting_has_a_help_text_and_an_option() -> None:
    usage = parser().format_help()
    for field in (each for group in config.TASK_GROUPS.values() for each in dataclasses.fields(group)):
        assert field.metadata["help"].strip(), field.name
        assert f"--{field.name} " in usage or f"[{field.name}" in usage, field.name


def test_the_launcher_accepts_all_settings_except_those_of_a_single_task() -> None:
    shared = set(config.names(config.RUN_GROUPS))
    per_task = {
        *("ps_hosts", "worker_hosts", "job_name", "task_index", "cluster_file", "spare_workers"),
        "metrics_port",
    }
    assert shared | per_task == {field.name for field in dataclasses.fields(Settings)} - {config.GIVEN}
    assert not shared & per_task


texts = st.text(min_size=1).filter(lambda text: "\0" not in text) | st.sampled_from(
    ["true", "null", "1", "1e3", "~", "a: b", "- c", "# d"]
)
paths = texts.map(Path)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
settings_strategy = st.builds(
    Settings,
    model=texts,
    dataset=st.sampled_from([None, "digits", "mnist", "npz", "lance"]),
    data_dir=texts,
    data_version=st.none() | texts,
    initial_weights=st.none() | paths,
    train_dir=st.none() | texts.filter(lambda text: not set(text) & set("*?[\\")),
    download=st.booleans(),
    sync_replicas=st.none() | st.booleans(),
    learning_rate=positive,
    save_seconds=positive,
    save_steps=st.none() | st.integers(1, 2**31 - 1),
    seed=st.integers(0, 2**63 - 1),
    ps_hosts=st.none() | texts,
    task_index=st.none() | st.integers(0),
    cluster_file=st.none() | paths,
    metrics_port=st.none() | st.integers(1, 65535),
    profile_steps=st.none() | st.integers(1, 200).map(lambda first: StepRange(first, 300)),
    train_steps=st.integers(200, 2**31 - 1),
)


@given(settings=settings_strategy)
def test_printed_settings_load_as_equal_settings(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> None:
    path = tmp_path_factory.getbasetemp() / "settings.yaml"
    path.write_text(config.to_yaml(settings), encoding="utf-8")
    assert config.load_file(path) == settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train_dir=runs/a[1]"], "train_dir: runs/a[1] has [, so TensorFlow would take"),
        (["--strategy=allreduce", "--sync_replicas"], "sync_replicas=True conflicts with strategy=allreduce"),
        (["--sync_replicas", "--local_steps=3"], "local_steps=3 does not divide train_steps=2000"),
    ],
)
def test_conflicting_settings_are_an_error(read: Read, words: list[str], message: str) -> None:
    assert error_of(read, *words).startswith(message)


def test_an_empty_file_sets_nothing(read: Read) -> None:
    assert read(file="# nothing yet\n") == Settings()


def test_an_unknown_key_in_the_file_is_named(read: Read) -> None:
    message = error_of(read, file="seed: 1\ntrain_step: 100\n")
    assert "file.yaml: train_step: unknown setting (did you mean train_steps?)" in message


def test_all_problems_are_told_at_once(read: Read) -> None:
    message = error_of(read, file="train_step: 100\nbatchsize: 3\nseed: one\n")
    assert "train_step: unknown setting (did you mean train_steps?); " in message
    assert "batchsize: unknown setting (did you mean batch_size?); " in message
    assert "seed='one', but input should be a valid integer" in message
    assert message.endswith("; --help lists all settings.")
    message = error_of(read, "--batch_size", "0", file="seed: many\nlearning_rate: 0\n")
    assert "--batch_size='0', but input should be greater than or equal to 1" in message
    assert "seed='many', but input should be a valid integer" in message
    assert "learning_rate=0, but input should be greater than 0" in message
    assert "\n" not in message


def test_an_unknown_option_is_named(read: Read) -> None:
    assert "--train_step" in error_of(read, "--train_step", "5")  # abbreviations are not accepted


def test_an_option_without_its_value_is_named(read: Read) -> None:
    assert "--train_steps" in error_of(read, "--train_steps")


def test_a_wrong_value_on_the_command_line_is_named_with_its_option(read: Read) -> None:
    message = error_of(read, "--batch-size", "many", environment={"TRAINER_BATCH_SIZE": "5"})
    assert message.startswith("--batch_size='many', but input should be a valid integer")


def test_a_wrong_value_in_the_environment_is_named_with_its_variable(read: Read) -> None:
    message = error_of(read, environment={"TRAINER_DATASET": "imagenet"}, file="dataset: digits")
    known = "'digits', 'mnist', 'npz', 'lance', 'csv', 'parquet' or 'tfrecord'"
    assert message == f"TRAINER_DATASET='imagenet', but input should be {known}."


def test_a_wrong_value_in_the_file_is_named_with_the_file(read: Read, tmp_path: Path) -> None:
    message = error_of(read, file="sync_replicas: [1, 2]")
    assert message == f"{tmp_path}/file.yaml: sync_replicas=[1, 2], but input should be a valid boolean."


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1", "fast", ""])
@pytest.mark.parametrize("name", ["learning_rate", "save_seconds", "wait_seconds", "stall_seconds"])
def test_a_rate_or_time_must_be_finite_and_positive(read: Read, name: str, value: str) -> None:
    assert error_of(read, f"--{name}={value}").startswith(f"--{name}={value!r}, but input should be")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "nan", "1e3x"])
@pytest.mark.parametrize(
    "name",
    [
        "train_steps",
        "batch_size",
        "hidden_units",
        "report_steps",
        "save_steps",
        "keep_checkpoints",
        "replicas_to_aggregate",
        "local_steps",
        "intra_op_threads",
        "inter_op_threads",
    ],
)
def test_a_count_must_be_a_positive_integer(read: Read, name: str, value: str) -> None:
    assert error_of(read, f"--{name}={value}").startswith(f"--{name}={value!r}, but input should be")


@pytest.mark.parametrize("name", ["seed", "task_index", "num_gpus"])
def test_an_index_must_not_be_negative(read: Read, name: str) -> None:
    assert getattr(read(f"--{name}=0"), name) == 0
    assert f"--{name}='-1', but" in error_of(read, f"--{name}=-1")


def test_a_range_of_steps_has_a_first_and_a_last_step(read: Read) -> None:
    assert read("--profile_steps=100-150").profile_steps == StepRange(100, 150)
    assert read("--profile_steps=7-7").profile_steps == StepRange(7, 7)
    assert read(file="profile_steps: 100-150").profile_steps == StepRange(100, 150)


@pytest.mark.parametrize("value", ["150-100", "0-10", "10", "10-", "-10", "a-b", "1.5-2", "1-2-3", ""])
def test_an_invalid_range_of_steps_is_an_error(read: Read, value: str) -> None:
    message = error_of(read, f"--profile_steps={value}")
    assert message.startswith(f"--profile_steps={value!r}, but input should be a range of global steps")


def test_a_range_of_steps_after_the_last_step_is_an_error(read: Read) -> None:
    assert error_of(read, "--profile_steps=2001-2010") == (
        "profile_steps=2001-2010 begins after the last step, train_steps=2000; "
        "choose earlier steps or raise train_steps."
    )


@pytest.mark.parametrize("value", ["true", "false", "yes"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train_steps", "integer"),
        ("save_steps", "integer"),
        ("seed", "integer"),
        ("task_index", "integer"),
        ("num_gpus", "integer"),
        ("metrics_port", "integer"),
        ("learning_rate", "number"),
        ("wait_seconds", "number"),
    ],
)
def test_a_boolean_is_not_a_number(read: Read, name: str, expected: str, value: str) -> None:
    message = error_of(read, file=f"{name}: {value}")
    assert message.endswith(f"{name}={value != 'false'}, but input should be a valid {expected}.")


@pytest.mark.parametrize("value", ["0", "65536", "http"])
def test_a_port_must_be_from_1_to_65535(read: Read, value: str) -> None:
    assert read("--metrics-port=9100").metrics_port == 9100
    assert f"--metrics_port='{value}', but" in error_of(read, f"--metrics_port={value}")


def test_a_missing_file_is_named(read: Read) -> None:
    assert "/no/such/file.yaml cannot be read" in error_of(read, "--config=/no/such/file.yaml")


@pytest.mark.parametrize(
    "content",
    [
        "seed: [1",
        "\tseed: 1",
        "? [a]\n: 1",
        "- seed",
        "seed",
        "seed: 2020-13-45",
        "[" * 5000,
    ],
)
def test_a_file_without_settings_is_named(read: Read, content: str) -> None:
    assert "file.yaml" in error_of(read, file=content)


def test_a_binary_file_is_named(read: Read, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00seed")
    assert "binary cannot be read" in error_of(read, "--config", str(tmp_path / "binary"))


def test_a_strategy_that_is_no_text_is_one_sentence(read: Read) -> None:
    assert "strategy" in error_of(read, file="strategy: [local]")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (merge_bomb().decode(), "its aliases stand for more than 1,000,000 values"),
        (yaml_bomb().decode(), "its aliases stand for more than 1,000,000 values"),
        (f"seed: 0x{'f' * 5000}", "a number has 5002 digits"),
        (f"strategy: 0x{'f' * 5000}", "a number has 5002 digits"),
        ("a: 1\n---\nb: 2", "must be one mapping"),
        (r'cluster_file: "\0"', "but text without null characters and surrogates was expected"),
        (r'train_dir: "\ud800"', "but text without null characters and surrogates was expected"),
        (r'"\ud800": 1', "unknown setting"),
    ],
)
def test_a_file_that_no_program_could_use_is_refused(read: Read, file: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(file=file)


def test_a_name_that_is_not_utf_8_is_a_path(read: Read) -> None:
    assert read(environment={"TRAINER_TRAIN_DIR": "\udcff"}).train_dir == "\udcff"


def test_changes_name_the_settings_that_differ_from_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    assert config.changes(file, Settings()) == []
    file.write_text(config.to_yaml(Settings(learning_rate=0.002, train_dir="runs/1")))
    assert config.changes(file, Settings(learning_rate=0.003)) == ["learning_rate=0.003 (0.002 before)"]
    assert config.changes(file, Settings(learning_rate=0.002)) == []
    for damaged in (b"", b"a: [", b"- 1", b"learning_rate: 2026-99-99", b"[" * 10_000, b"\xff", yaml_bomb()):
        file.write_bytes(damaged)
        assert config.changes(file, Settings()) == []
