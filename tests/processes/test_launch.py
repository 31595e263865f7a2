"""`trainer launch`: whole clusters of real processes, from start to result."""

import json
import os
import re
import signal
import statistics
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.processes.trainers import (
    PATIENCE,
    SETTINGS,
    WITHOUT_EVALUATIONS,
    Trainer,
    step_in,
    wait_for_line,
    wait_until,
)
from trainer.telemetry.goodput import describe, read
from trainer.telemetry.progress import parse

RESULT_KEYS = {
    "global_step",
    "seconds",
    "steps_per_second",
    "test_accuracy",
    "test_loss",
    "mode",
    "workers",
    "ps",
    "dataset",
    "dataset_digest",
    "version",
}


@pytest.fixture
def single_process_accuracy(trained: Path) -> float:
    """The accuracy of a single process after 800 steps."""
    accuracy: float = json.loads((trained / "result.json").read_text())["test_accuracy"]
    return accuracy


@pytest.mark.parametrize(
    ("ps", "workers", "chief"),
    [
        pytest.param(1, 2, False, id="1 ps, 2 workers"),
        pytest.param(2, 3, False, id="2 ps, 3 workers", marks=pytest.mark.long),
        pytest.param(1, 1, True, id="with a chief", marks=pytest.mark.long),
    ],
)
def test_synchronous_replicas_learn_as_well_as_a_single_process(
    trainer: Trainer, single_process_accuracy: float, ps: int, workers: int, chief: bool
) -> None:
    cluster = ["--ps", str(ps), "--workers", str(workers), *(["--chief"] if chief else [])]
    result = trainer.launch("--sync_replicas", *cluster, *SETTINGS, "800")
    assert result.keys() >= RESULT_KEYS
    assert (result["mode"], result["global_step"], result["dataset"]) == ("synchronous", 800, "digits")
    assert (result["ps"], result["workers"]) == (ps, workers + chief)
    assert result["test_accuracy"] == pytest.approx(single_process_accuracy, abs=0.01)


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(["--workers", "2"], id="2 workers"),
        pytest.param(["--workers", "2", "--chief"], id="with a chief", marks=pytest.mark.long),
    ],
)
def test_allreduce_replicas_learn_as_well_as_a_single_process(
    trainer: Trainer, single_process_accuracy: float, cluster: list[str]
) -> None:
    result = trainer.launch("--strategy", "allreduce", *cluster, *SETTINGS, "800")
    assert (result["mode"], result["global_step"]) == ("allreduce", 800)
    assert (result["ps"], result["workers"]) == (0, 2 + ("--chief" in cluster))
    assert result["test_accuracy"] == pytest.approx(single_process_accuracy, abs=0.01)


def test_local_sgd_replicas_learn_as_well_as_a_single_process(trainer: Trainer, single_process_accuracy: float) -> None:
    result = trainer.launch("--sync_replicas", "--local_steps", "8", "--ps", "2", "--workers", "2", *SETTINGS, "800")
    assert (result["mode"], result["global_step"]) == ("local_sgd", 800)
    assert result["test_accuracy"] == pytest.approx(single_process_accuracy, abs=0.01)


@pytest.mark.long
def test_asynchronous_replicas_learn_as_well_as_a_single_process(
    trainer: Trainer, single_process_accuracy: float
) -> None:
    clusters = [["--ps", "1", "--workers", "2"], ["--ps", "2", "--workers", "2"], ["--chief", "--workers", "1"]]
    results = [trainer.launch(*cluster, *SETTINGS, "1000") for cluster in clusters]
    for result in results:
        assert result["mode"] == "asynchronous"
        assert 1000 <= result["global_step"] < 1050  # overshoot by less than one execution
    # Asynchronous runs vary: one of many is a point off. Therefore compare the median.
    median = statistics.median(result["test_accuracy"] for result in results)
    assert median == pytest.approx(single_process_accuracy, abs=0.01)


def test_a_run_writes_the_documented_files(trainer: Trainer) -> None:
    result = trainer.launch("--ps", "2", "--train_steps", "600", "--train_dir", "run", WITHOUT_EVALUATIONS)
    run = trainer.folder / "run"
    assert json.loads((run / "result.json").read_text()) == result
    assert list(run.glob("model.ckpt-*.index"))
    assert list((run / "train").glob("events.*"))
    assert list((run / "test").glob("events.*"))
    assert {path.name for path in (run / "logs").iterdir()} == {
        *(".lock", "config.yaml", "ps-0.log", "ps-1.log", "worker-0.log", "worker-1.log")
    }
    assert Path(trainer.folder, result["export"], "saved_model.pb").exists()


@pytest.mark.long
def test_the_evaluator_evaluates_each_checkpoint_once_and_ends_with_the_run(trainer: Trainer) -> None:
    trainer.launch("--workers", "1", "--evaluator", "--train_steps", "600", "--save_steps", "200", "--train_dir", "run")
    lines = (trainer.folder / "run" / "test" / "evaluations.jsonl").read_text().splitlines()
    evaluated = [json.loads(line)["checkpoint"] for line in lines]
    assert evaluated == sorted(set(evaluated))
    assert evaluated[-1] >= 600
    assert len(evaluated) >= 2
    assert json.loads(lines[-1])["accuracy"] > 0.9


@pytest.mark.long
def test_a_new_run_gets_a_new_folder_and_prints_the_next_commands(trainer: Trainer) -> None:
    code, output = trainer.run("launch", "--workers", "1", "--train_steps", "100", "--hidden_units", "20")
    assert code == 0
    (run,) = (trainer.folder / "runs").iterdir()
    name = run.relative_to(trainer.folder)
    for part in ("test accuracy", f"{name}/result.json", "next:", "tensorboard --logdir", f"trainer report {name}"):
        assert part in output
    assert f"trainer models predict {name} --data FOLDER --output predictions" in output
    command = next(line for line in output.splitlines() if line.endswith("# train on from here"))
    code, output = trainer.run(*command.partition("#")[0].split()[1:])
    assert code == 0, output
    assert "after 500 global steps" in output


@pytest.mark.long
@pytest.mark.parametrize("mode", ["--sync_replicas", "--strategy=allreduce"])
def test_more_steps_resume_the_run_and_the_same_number_of_steps_ends_at_once(trainer: Trainer, mode: str) -> None:
    words = ["--workers", "1", "--train_dir", "run", mode, "--train_steps"]
    first = trainer.launch(*words, "100")
    again = trainer.launch(*words, "100")
    assert again == first
    more = trainer.launch(*words, "150")
    assert more["global_step"] == 150
    log = (trainer.folder / "run" / "logs" / "worker-0.log").read_text()
    assert log.count("at step 0 of 100") == 1
    assert log.count("at step 100 of 100") == 1
    assert log.count("at step 100 of 150") == 1


SYNC = ["--sync_replicas"]
TIMED = Path(__file__).parents[2] / "benchmarks" / "faults" / "timed_model.py"


@pytest.mark.long
@pytest.mark.parametrize(
    ("role", "options"),
    [
        pytest.param("worker", [], id="worker, asynchronous"),
        pytest.param("worker", SYNC, id="worker, synchronous"),
        pytest.param("chief", [], id="chief, asynchronous"),
        pytest.param("chief", SYNC, id="chief, synchronous"),
        pytest.param("ps", [], id="ps, asynchronous"),
        pytest.param("ps", SYNC, id="ps, synchronous"),
    ],
)
def test_a_killed_task_is_restarted_and_training_continues(trainer: Trainer, role: str, options: list[str]) -> None:
    steps = "2000" if options else "5000"  # asynchronous replicas continue during the restart, and are faster
    words = ["--ps", "2", "--workers", "1", "--chief", "--train_steps", steps, "--save_steps", "100"]
    began = time.time()
    launcher = trainer.start("launch", *words, "--train_dir", "run", *options)
    log = trainer.folder / "run" / "logs" / "chief-0.log"
    wait_until((trainer.folder / "run" / "checkpoint").exists)
    trainer.task(role).kill()
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, output
    assert f"{role} 0: starting again (SIGKILL), restart 1 of 3" in output
    assert f"\nrestarted: {role} 0 once\n" in output
    result = json.loads((trainer.folder / "run" / "result.json").read_text())
    assert result["test_accuracy"] >= 0.95
    parts = result["goodput_seconds"]
    assert result["seconds"] <= sum(parts.values()) <= time.time() - began, "the parts are the whole time, once each"
    assert describe(read(result)) in output
    if role == "ps":
        assert "restored" in log.read_text()
        assert parts["waiting"] > 0
    if role == "chief":
        assert "continuing with it" in log.read_text()


@pytest.mark.parametrize("mode", ["--sync_replicas=false", pytest.param("--sync_replicas", marks=pytest.mark.long)])
def test_a_parameter_server_that_is_told_to_end_loses_no_step(trainer: Trainer, mode: str) -> None:
    steps = ["--train_steps", "2000", "--save_seconds", "600", "--save_share", "0", WITHOUT_EVALUATIONS]
    words = ["--ps", "2", "--workers", "1", "--chief", *steps, "--train_dir", "run", "--model", str(TIMED), mode]
    launcher = trainer.start("launch", *words, STEP_SECONDS="0.01")
    log = trainer.folder / "run" / "logs" / "chief-0.log"
    wait_until(lambda: step_in(log) >= 100)
    trainer.task("ps").terminate()
    reached = step_in(log)
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, output
    restored = re.findall(r"restored run/model.ckpt-(\d+)", log.read_text())
    assert len(restored) == 1
    assert int(restored[0]) >= reached


def test_servers_that_are_left_keep_their_part_of_an_asynchronous_run(trainer: Trainer) -> None:
    words = ["--ps", "2", "--workers", "2", "--train_steps", "1000", "--train_dir", "run", "--model", str(TIMED)]
    launcher = trainer.start("launch", *words, "--sync_replicas=false", STEP_SECONDS="0.01")
    log = trainer.folder / "run" / "logs" / "worker-0.log"
    wait_until((trainer.folder / "run" / "checkpoint").exists)
    trainer.task("ps", 1).kill()
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, output
    lines = log.read_text().splitlines()
    assert any("ps 1 restored from run/model.ckpt-" in line for line in lines), output
    steps = [found.step for line in lines if (found := parse(line))]
    assert steps == sorted(steps), "a step was taken again"
    result = json.loads((trainer.folder / "run" / "result.json").read_text())
    assert result["goodput_seconds"]["again"] == 0
    assert result["test_accuracy"] > 0.95


@pytest.mark.long
@pytest.mark.parametrize("role", ["worker", "chief"])
def test_a_killed_allreduce_replica_is_restarted_and_training_continues(trainer: Trainer, role: str) -> None:
    words = ["--strategy", "allreduce", "--workers", "2", "--chief", "--train_steps", "1500", "--save_steps", "100"]
    launcher = trainer.start("launch", *words, "--train_dir", "run")
    wait_until((trainer.folder / "run" / "checkpoint").exists)
    trainer.task(role).kill()
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, output
    assert f"{role} 0: starting again (SIGKILL)" in output
    assert output.count("starting again") == 1  # the others restart their own processes
    assert f"lost {role} 0 (" in (trainer.folder / "run" / "logs" / "worker-1.log").read_text()
    assert "restored" in (trainer.folder / "run" / "logs" / "chief-0.log").read_text()
    result = json.loads((trainer.folder / "run" / "result.json").read_text())
    assert result["global_step"] == 1500
    assert result["test_accuracy"] >= 0.95


def test_allreduce_loses_no_steps_when_a_worker_is_lost_and_each_loss_is_one_restart(trainer: Trainer) -> None:
    words = ["--strategy", "allreduce", "--train_steps", "1000000", "--train_dir", "run"]
    launcher = trainer.start("launch", *words)
    log = trainer.folder / "run" / "logs" / "worker-0.log"

    def beginnings() -> list[int]:
        """The steps at which the chief's sessions have begun."""
        return [int(line.split()[-3]) for line in log.read_text().splitlines() if " of 1000000" in line]

    def lose_a_worker(number: signal.Signals, least: int) -> int:
        """Send a worker this signal at a later step than this one; return the step at which the run goes on."""
        wait_until(lambda: step_in(log) >= least)
        sessions = len(beginnings())
        trainer.task("worker", 1).send_signal(number)
        wait_until(lambda: len(beginnings()) > sessions)
        return beginnings()[-1]

    goes_on = lose_a_worker(signal.SIGKILL, 200)
    assert goes_on >= 200
    assert lose_a_worker(signal.SIGTERM, goes_on + 200) >= goes_on + 200
    launcher.terminate()
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert output.count("worker 1: starting again") == 2


def test_too_many_restarts_fail_the_run_with_the_tasks_code_and_last_lines(trainer: Trainer) -> None:
    words = ["--workers", "2", "--train_steps", "1000000", "--max_restarts", "1", "--train_dir", "run"]
    launcher = trainer.start("launch", *words)
    for _ in range(2):
        worker = trainer.task("worker", 1)
        wait_until(lambda: step_in(trainer.folder / "run" / "logs" / "worker-1.log") > 0)
        worker.kill()
        worker.wait(60)
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 137
    assert "worker 1: starting again (SIGKILL), restart 1 of 1" in output
    assert "worker 1 was restarted once and has ended again (SIGKILL): find out what ends it" in output
    assert "worker 1 failed for good. Its log is run/logs/worker-1.log." in output
    assert "\ngoodput " in output
    assert re.search(
        r"continue with: .*trainer launch --config run/logs/config.yaml --ps 1 .* --max_restarts 1$", output
    )


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        pytest.param(signal.SIGINT, "--sync_replicas", id="Ctrl-C, synchronous"),
        pytest.param(signal.SIGINT, "--strategy=allreduce", id="Ctrl-C, all-reduce", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "--sync_replicas", id="SIGTERM, synchronous", marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, "--sync_replicas", id="SIGHUP, synchronous", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "--strategy=allreduce", id="SIGTERM, all-reduce"),
    ],
)
def test_a_signal_ends_all_tasks_and_saves_a_checkpoint(trainer: Trainer, number: signal.Signals, mode: str) -> None:
    launcher = trainer.start("launch", "--train_steps", "1000000", "--train_dir", "run", mode)
    log = trainer.folder / "run" / "logs" / "worker-0.log"
    wait_until(lambda: step_in(log) >= 50)
    launcher.send_signal(number)
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 128 + number
    assert "\nTraceback" not in output
    assert not trainer.processes()
    saved = (trainer.folder / "run").glob("model.ckpt-*.index")
    step = max(int(each.stem.rpartition("-")[2]) for each in saved)  # a slow machine has saved others before the signal
    assert step >= 50
    assert f"saved step {step}; continue with: " in output
    assert "trainer launch --config run/logs/config.yaml --ps " in output


def test_a_second_launch_on_the_same_directory_is_refused_and_a_lost_reader_ends_the_first(trainer: Trainer) -> None:
    words = ["launch", "--train_steps", "1000000", "--train_dir", "run"]
    first = trainer.start(*words)
    log = trainer.folder / "run" / "logs" / "worker-0.log"
    wait_until(lambda: step_in(log) > 0)
    code, output = trainer.run(*words)
    assert (code, output.count("\n")) == (2, 1), output
    assert "train_dir: another trainer launch trains in run: end it, or choose another train_dir." in output
    reached = step_in(log)
    wait_until(lambda: step_in(log) > reached)
    assert first.stdout
    first.stdout.close()
    assert first.wait(PATIENCE) == 128 + signal.SIGPIPE
    assert "SIGTERM: ending" in log.read_text()
    assert not trainer.processes()


@pytest.mark.long
def test_a_run_does_not_end_because_its_output_is_full(trainer: Trainer) -> None:
    words = ["launch", "--workers", "1", "--train_steps", "300", "--train_dir", "run"]
    full = "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); os.execv(sys.executable, sys.argv[1:])"

    def launch(*more: str) -> tuple[int, str]:
        launcher = trainer.python("-c", full, sys.executable, "-m", "trainer", *words, *more)
        output, _ = launcher.communicate(timeout=PATIENCE)
        return launcher.returncode, output

    assert launch() == (0, "")
    assert json.loads((trainer.folder / "run" / "result.json").read_text())["state"] == "done"
    # A program reads the result as JSON, so it must not be lost without a word.
    code, output = launch("--json")
    assert (code, output.count("\n")) == (2, 1), output
    assert "--json: the result cannot be printed (No space left on device); it is in run/result.json." in output


def test_a_killed_launcher_leaves_no_task_running(trainer: Trainer) -> None:
    launcher = trainer.start("launch", "--train_steps", "1000000", "--train_dir", "run", "--tensorboard")
    wait_until(lambda: step_in(trainer.folder / "run" / "logs" / "worker-0.log") > 0)
    launcher.kill()
    wait_until(lambda: not trainer.processes())


def test_each_replica_sees_the_gpus_that_are_assigned_to_it(trainer: Trainer) -> None:
    text = "import os\nfrom trainer.models.mlp import *\nprint('GPUs:', os.environ['CUDA_VISIBLE_DEVICES'])\n"
    (trainer.folder / "own.py").write_text(text)
    words = ["--model", "own.py", "--workers", "3", "--train_steps", "1000000", "--train_dir", "run"]
    launcher = trainer.start("launch", *words, CUDA_VISIBLE_DEVICES="3,5")
    for worker, gpu in enumerate("353"):
        wait_for_line(trainer.folder / "run" / "logs" / f"worker-{worker}.log", f"GPUs: {gpu}")
    launcher.terminate()
    launcher.communicate(timeout=PATIENCE)


@pytest.mark.long
def test_tensorboard_serves_the_run(trainer: Trainer) -> None:
    launcher = trainer.start("launch", "--workers", "1", "--train_steps", "200", "--train_dir", "run", "--tensorboard")
    assert launcher.stdout is not None
    address = ""
    for line in launcher.stdout:
        if line.startswith("TensorBoard: "):
            address = line.split()[1]
        if "until Ctrl-C" in line:
            break

    def curves() -> Any:
        try:
            with urllib.request.urlopen(f"{address}data/plugin/scalars/tags", timeout=5) as response:
                return json.load(response)
        except OSError:
            return None

    tags = wait_until(lambda: (found := curves()) and {"train", "test"} <= found.keys() and found)
    assert set(tags["train"]) == {"loss", "accuracy", "steps_per_second"}
    assert set(tags["test"]) == {"loss", "accuracy"}
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 130


@pytest.mark.long
def test_a_profile_is_kept_when_a_parameter_server_is_lost_and_when_the_run_is_stopped(trainer: Trainer) -> None:
    words = ["--train_steps", "1000000", "--train_dir", "run", "--profile_steps", "100-1000000"]
    launcher = trainer.start("launch", *words)
    run = trainer.folder / "run"

    def profiled(times: int) -> bool:
        """Return whether the chief has logged a step in this number of profiles."""
        log = run / "logs" / "worker-0.log"
        begun = log.read_text().split("profiling from step") if log.exists() else []
        return len(begun) == times + 1 and ": loss" in begun[times]

    wait_until(lambda: profiled(1))
    trainer.task("ps").kill()
    wait_until(lambda: profiled(2))
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 130, output
    profiles = [path.read_bytes() for path in (run / "plugins" / "profile").glob("*/*.xplane.pb")]
    assert len(profiles) == 2
    assert all(b"MatMul" in profile for profile in profiles)
    assert "profil" not in (run / "logs" / "worker-1.log").read_text()  # only the chief has the training directory


def test_real_mnist_is_learned(trainer: Trainer, mnist_folder: Path) -> None:
    # At the default learning rate asynchronous runs vary by more than a point. This test only checks the data.
    words = ["--dataset", "mnist", "--data_dir", str(mnist_folder), "--download=false", "--learning_rate=0.003"]
    assert trainer.launch(*words, "--train_steps=1500")["test_accuracy"] >= 0.93


def test_a_closed_terminal_ends_a_run_in_order(trainer: Trainer) -> None:
    words = ["launch", "--workers", "1", "--train_steps", "1000000", "--train_dir", "run"]
    with (trainer.folder / "errors").open("wb") as errors:
        process, controller = trainer.start_in_terminal(*words, errors=errors.fileno())
    wait_until(lambda: step_in(trainer.folder / "run" / "logs" / "worker-0.log") > 0)
    os.close(controller)
    for _ in range(2):  # by the shell and by the kernel
        process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 128 + signal.SIGHUP
    told = (trainer.folder / "errors").read_text()
    assert "SIGHUP: ending all tasks" in told
    assert "continue with: " in told
    assert "\nTraceback" not in told


def test_a_terminal_shows_the_tasks_in_a_table(trainer: Trainer) -> None:
    process, controller = trainer.start_in_terminal("launch", "--workers", "1", "--train_steps", "500")
    screen = b""
    while True:
        try:
            chunk = os.read(controller, 1 << 16)
        except OSError:
            break
        screen += chunk
    os.close(controller)
    assert process.wait(PATIENCE) == 0
    for part in (b"last said", b"worker 0", b"ps 0", b"done", b"/500: loss"):
        assert part in screen
    (run,) = (trainer.folder / "runs").iterdir()
    assert "done: 50" in (run / "logs" / "worker-0.log").read_text()
