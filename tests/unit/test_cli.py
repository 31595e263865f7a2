"""The `trainer` command line."""

import contextlib
import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import trainer
from hack.ports import free_ports
from trainer import cli
from trainer.cli import main
from trainer.telemetry import report
from trainer.text import tracebacks

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_wrong_tf_config_is_one_line_and_exit_code_2(run_python: Run) -> None:
    config = '{"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":3}}'
    done = run_python("-m", "trainer", "train", TF_CONFIG=config)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "trainer: TF_CONFIG: this task is worker 3, but the indices are 0 to 0; list its address (in the chart: "
        "worker.maxReplicas).\n"
    )


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["train", "--train_steps", "0"], "--train_steps='0'"),
        (["train", "--no-such-option"], "--no_such_option"),
        (["launch", "--ps", "0"], "--ps: no ps"),
        (["launch", "--workers", "0"], "--workers"),
        (["launch", "--workers", "many"], "--workers"),
        (["launch", "--max_restarts", "-1"], "--max_restarts"),
        (["launch", "--task_index", "0"], "--task_index"),
        (["launch", "--metrics_port", "9100"], "--metrics_port"),
        (["launch", "--train_steps", "0"], "--train_steps"),
        (["launch", "--dataset", "cats"], "--dataset"),
        (["launch", "--strategy", "allreduce", "--ps", "1"], "--ps"),
        (["launch", "--strategy", "allreduce", "--sync_replicas"], "sync_replicas"),
        (["launch", "--local_steps", "4"], "local_steps"),
        (["launch", "--profile_steps", "150-100"], "--profile_steps"),
        (["fly"], "'fly'"),
        (["--train_steps", "5"], "'--train_steps'"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], culprit: str
) -> None:
    monkeypatch.setattr(cli, "_exit_at_once", lambda code: code)  # it would end this process
    assert main(words) == 2
    printed, said = capsys.readouterr()
    assert printed == ""
    assert said.startswith("trainer: ")
    assert culprit in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--bach_size", "5"], "unrecognized arguments: --bach_size (did you mean --batch_size?) 5 (see"),
        (
            ["launch", "--worker=2", "--trainsteps=9"],
            "--worker=2 (did you mean --workers?) --trainsteps=9 (did you mean ",
        ),
        (["models", "predict", "a", "--data=b", "--output=c", "--treshold=1"], "--treshold=1 (did you mean --thres"),
        (["lunch"], "there is no command 'lunch' (did you mean launch?)"),
        (["train", "--zzz"], "unrecognized arguments: --zzz (see"),
        (["train", "--model=no/mine.py"], "model=no/mine.py: there is no such file; name the path of a Python file"),
        (["launch", "--model=no/mine.py"], "model=no/mine.py: there is no such file; name the path of a Python file"),
        (["models", "predict", ".", "--data=no.csv", "--output=c"], "--data: there is no no.csv; name a folder of"),
    ],
)
def test_what_does_not_exist_is_named_with_what_may_be_meant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setattr(cli, "_exit_at_once", lambda code: code)  # it would end this process
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_a_file_beside_the_absent_one_may_be_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").touch()
    assert main(["train", f"--model={tmp_path / 'modle.py'}"]) == 2
    assert "modle.py: there is no such file (did you mean model.py?); name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["models", "--help"], ["compare", "predict", "delta", "publish"]),
        (["launch", "--help"], ["--export best|last", "--strategy ps|allreduce"]),
        (["--help"], ["--debug,"]),
    ],
)
def test_help_lists_commands_and_choices(
    capsys: pytest.CaptureFixture[str], words: list[str], shown: list[str]
) -> None:
    with contextlib.suppress(SystemExit):
        main(words)
    text = capsys.readouterr().out
    for each in shown:
        assert f" {each}" in text


FAILING = "def train_data(context):\n    return absent_name\n\ndef model():\n    pass\n"


@pytest.mark.slow
@pytest.mark.parametrize(("words", "is_log"), [([], False), (["--debug"], False), ([], True)])
def test_a_traceback_is_shown_with_debug_and_in_each_log(
    run_python: Run, tmp_path: Path, words: list[str], is_log: bool
) -> None:
    (tmp_path / "mine.py").write_text(FAILING)
    reports = {report.VARIABLE: "yes"} if is_log else {}
    done = run_python("-m", "trainer", "train", "--model=mine.py", *words, **reports)
    assert done.returncode == 2
    *above, last = done.stderr.splitlines()
    assert last.startswith("trainer: ")
    assert "absent_name" in last
    assert any("return absent_name" in line for line in above) == bool(words or is_log)
    assert all(tracebacks.is_line(line) for line in above) == (not words)


@pytest.mark.slow
def test_a_log_whose_reader_is_gone_is_given_up(run_python: Run) -> None:
    """As by `head`. The training goes on."""
    program = """
import os, subprocess, sys
reader, writer = os.pipe()
os.close(reader)
words = ["train", "--train_steps=20", "--hidden_units=5", "--train_dir=run"]
done = subprocess.run([sys.executable, "-m", "trainer", *words], stdout=writer, check=False)
sys.exit(done.returncode)
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_of_ascii_alone_gets_other_signs_replaced(run_python: Run) -> None:
    done = run_python("-m", "trainer", "train", "--help", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert "HOST:PORT,HOST:PORT,?" in done.stdout


def test_the_command_line_ends_with_the_exit_code(run_python: Run) -> None:
    done = run_python("-m", "trainer", "launch", "--num_gpus", "99")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("trainer: num_gpus=99, but ")


def test_the_version_flag_prints_the_version(run_python: Run) -> None:
    done = run_python("-m", "trainer", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{trainer.__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["train", "--help"], ["launch", "--help"], ["serve", "--help"], ["convert-tfjob", "--help"]],
)
def test_help_comes_without_tensorflow(run_python: Run, words: list[str]) -> None:
    program = f"""
import sys
from trainer.cli import main
try:
    code = main({words!r})
except SystemExit as end:
    code = end.code
assert "tensorflow" not in sys.modules
sys.exit(code)
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: trainer")


@pytest.mark.parametrize(("words", "unbuffered"), [("--version", ""), ("--version", "1"), ("data --help", "")])
def test_a_pipe_that_its_reader_has_closed_ends_a_command_without_a_traceback(
    run_python: Run, words: str, unbuffered: str
) -> None:
    """As `head` does. Python fails to write at the command's end, or at once if it does not buffer."""
    program = f"""
import os, subprocess, sys
reader, writer = os.pipe()
os.close(reader)
done = subprocess.run([sys.executable, "-m", "trainer", *{words.split()!r}], stdout=writer, check=False)
sys.exit(done.returncode)
"""
    done = run_python("-c", program, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("trainer.config", ["train"]),
        ("trainer.launcher", ["launch"]),
        ("tensorflow", ["report", "."]),
        ("tensorflow", ["models", "compare", ".", "."]),
    ],
)
def test_ctrl_c_during_an_import_ends_it_with_code_130_and_no_traceback(
    run_python: Run, module: str, words: list[str]
) -> None:
    program = f"""
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {words!r}
runpy.run_module("trainer", run_name="__main__")
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("wanted", ["", "yes"])
def test_lines_have_reports_only_for_a_launcher_or_a_supervisor(run_python: Run, wanted: str) -> None:
    program = """
import logging
from trainer import cli
from trainer.telemetry import report
from trainer.text import tracebacks
cli._log_to_stdout("")
report.log(logging.getLogger("trainer"), "a sentence", restored="model.ckpt-1")
"""
    line = run_python("-c", program, TASK_REPORTS=wanted).stdout
    assert (report.read(line, "restored", str) == "model.ckpt-1") == bool(wanted)
    assert line.endswith("a sentence\n") != bool(wanted)


@pytest.mark.parametrize(
    ("words", "package", "lock"),
    [
        (["train"], "sklearn", "cpu"),
        (["launch"], "tensorflow", "cpu"),
        (["supervise", "--run=run.json"], "lightkube", "supervisor"),
    ],
)
def test_a_command_whose_packages_are_not_installed_names_the_lock(
    run_python: Run, words: list[str], package: str, lock: str
) -> None:
    program = f"""
import importlib.util, sys
from trainer.cli import main
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == {package!r} else found(name)
sys.exit(main({words!r}))
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"trainer: trainer {words[0]}: the Python package {package} is not installed: ")
    assert done.stderr.endswith(f"pip install -r constraints/{lock}.txt in a clone of this project.\n")
    assert done.stderr.count("\n") == 1


def test_the_printed_config_is_a_readable_config_file(run_python: Run, tmp_path: Path) -> None:
    first = run_python("-m", "trainer", "train", "--train-steps=7", "--print_config", TRAINER_SEED="3")
    assert first.returncode == 0
    assert "train_steps: 7\n" in first.stdout
    assert "seed: 3\n" in first.stdout
    (tmp_path / "run.yaml").write_text(first.stdout)
    assert run_python("-m", "trainer", "train", "--config=run.yaml", "--print_config").stdout == first.stdout


@pytest.mark.slow
def test_a_conflict_is_logged_and_an_error_after_the_import_of_tensorflow_is_one_line(run_python: Run) -> None:
    cluster = {"worker": ["localhost:1"], "ps": ["localhost:2"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    words = ["--job_name=evaluator", "--dataset=npz", "--data_dir=absent", "--train_dir=run"]
    done = run_python("-m", "trainer", "train", *words, TF_CONFIG=config, TASK_REPORTS="yes")
    assert done.returncode == 2
    conflict, started, ended = done.stdout.splitlines()
    assert conflict.endswith("evaluator 0: --job_name wins over TF_CONFIG: evaluator instead of worker.")
    assert "started" in started
    assert "ended" in ended
    assert done.stderr == (
        "trainer: data_dir=absent contains no .npz file to train on; add files with arrays x (images) and y (labels).\n"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file or directory"), (b"\xff\xfe", "it is not UTF-8"), (b"{", "is not JSON")],
)
def test_a_cluster_file_that_cannot_be_read_is_one_line(
    run_python: Run, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "cluster.json").write_bytes(content)
    done = run_python("-m", "trainer", "train", "--job_name=ps", "--task_index=0", TRAINER_CLUSTER_FILE="cluster.json")
    assert done.returncode == 2
    assert done.stderr.startswith("trainer: --cluster_file: cluster.json ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_metrics_port_in_use_is_one_line(run_python: Run) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_python("-m", "trainer", "train", TRAINER_METRICS_PORT=str(port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"trainer: metrics_port: {port} cannot be listened on (Address already in use)")
    assert done.stderr.count("\n") == 1


def test_a_malformed_number_of_restarts_is_one_line_if_metrics_are_served(run_python: Run) -> None:
    (port,) = free_ports(1)
    done = run_python("-m", "trainer", "train", f"--metrics_port={port}", TASK_RESTARTS="many")
    assert done.returncode == 2
    assert done.stderr.startswith("trainer: TASK_RESTARTS: 'many' was given")
    assert done.stderr.count("\n") == 1


def test_a_refusal_is_one_line_of_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--print_config", f"a\n\x1b[31m{'x' * 10_000}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(r"trainer: unrecognized arguments: a\n\x1b[31mxxx")
    assert line.endswith("(see trainer train --help).")
    assert len(line) < 1020
