"""`trainer train`: single tasks that the tests start, stop and kill by hand."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.ports import free_ports
from tests.processes.trainers import PATIENCE, WITHOUT_EVALUATIONS, WITHOUT_SAVES, Trainer, wait_until
from trainer.telemetry.progress import parse
from trainer.tensorflow import tf1
from trainer.training import parameter_server

Hosts = Callable[[int, int], list[str]]


def read_until(process: subprocess.Popen[str], *parts: str) -> str:
    """Read a process's output up to a line with all these parts; return that line."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if all(part in line for part in parts):
            return line
    raise AssertionError(f"the output ended without a line of {parts}:\n{''.join(seen)}")


def test_a_classic_cluster_started_by_hand_ends_by_itself(trainer: Trainer, hosts: Hosts) -> None:
    flags = [*hosts(1, 2), "--train_steps=600", "--learning_rate=0.003"]
    ps = trainer.start("train", *flags, "--job_name=ps", "--task_index=0")
    second = trainer.start("train", *flags, "--job_name=worker", "--task_index=1")
    first = trainer.start("train", *flags, "--job_name=worker", "--task_index=0", "--train_dir=run")
    for process in (first, second, ps):
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
        assert "next: " not in output  # commands for a terminal are none for each task of a cluster
    assert json.loads((trainer.folder / "run" / "result.json").read_text())["test_accuracy"] > 0.9


@pytest.mark.long
def test_a_cluster_named_by_a_file_trains(trainer: Trainer) -> None:
    chief, worker, ps = (f"localhost:{port}" for port in free_ports(3))
    file = trainer.folder / "cluster.json"
    file.write_text(json.dumps({"chief": [chief], "worker": [worker], "ps": [ps]}))
    by_flags = ["--cluster_file=cluster.json", "--train_dir=run"]
    own = {"TRAINER_CLUSTER_FILE": str(file), "TRAINER_JOB_NAME": "worker", "TRAINER_TASK_INDEX": "0"}
    tasks = [
        trainer.start("train", *by_flags, "--job_name=ps", "--task_index=0"),
        trainer.start("train", *by_flags, "--job_name=chief", "--task_index=0"),
        trainer.start("train", **own),
    ]
    for task in tasks:
        output, _ = task.communicate(timeout=PATIENCE)
        assert task.returncode == 0, output
    result = json.loads((trainer.folder / "run" / "result.json").read_text())
    assert (result["workers"], result["ps"]) == (2, 1)


@pytest.mark.long
def test_workers_in_the_cluster_that_do_not_exist_cause_no_delay(trainer: Trainer, hosts: Hosts) -> None:
    ps_hosts, worker_hosts = hosts(1, 2)
    flags = [ps_hosts, f"{worker_hosts},{','.join(f'no-such-worker-{index}.invalid:2222' for index in range(4))}"]
    ps = trainer.start("train", *flags, "--job_name=ps", "--task_index=0")
    second = trainer.start("train", *flags, "--job_name=worker", "--task_index=1")
    first = trainer.start("train", *flags, "--job_name=worker", "--task_index=0", "--train_dir=run")
    for process in (first, second):
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
    output, _ = ps.communicate(timeout=parameter_server.LINGER_SECONDS / 2)
    assert ps.returncode == 0, output


def test_a_single_process_trains(trained: Path) -> None:
    result = json.loads((trained / "result.json").read_text())
    assert (result["global_step"], result["mode"], result["workers"], result["ps"]) == (800, "single", 1, 0)
    assert result["test_accuracy"] >= 0.95
    (curves,) = (trained / "train").iterdir()
    points = [event.step for event in tf1.train.summary_iterator(str(curves)) if event.summary.value]
    assert points == list(range(100, 801, 100))


def test_a_single_process_trains_on_all_of_its_devices(trainer: Trainer) -> None:
    program = """
import sys
from trainer.tensorflow import tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from trainer.cli import main
main(sys.argv[1:])
"""
    words = ["train", "--train_dir=run", "--train_steps=300", "--learning_rate=0.003"]
    process = trainer.python("-c", program, *words)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    result = json.loads((trainer.folder / "run" / "result.json").read_text())
    assert (result["mode"], result["global_step"], result["workers"], result["ps"]) == ("single", 300, 2, 0)
    assert result["test_accuracy"] >= 0.95


def test_the_same_seed_gives_the_same_result_with_and_without_sync_replicas(trainer: Trainer) -> None:
    losses = set()
    for run, mode in (("plain", []), ("synchronous", ["--sync_replicas"])):
        code, output = trainer.run("train", "--train_dir", run, "--train_steps", "60", *mode)
        assert code == 0, output
        losses.add(json.loads((trainer.folder / run / "result.json").read_text())["test_loss"])
    assert len(losses) == 1


@pytest.mark.long
def test_the_convolutional_model_trains(trainer: Trainer) -> None:
    code, output = trainer.run("train", "--model=cnn", "--train_steps=100", "--train_dir=run")
    assert code == 0, output
    assert json.loads((trainer.folder / "run" / "result.json").read_text())["test_accuracy"] >= 0.9


def test_the_exported_model_is_loaded_by_plain_tensorflow(trained: Path) -> None:
    program = """
import pathlib, tensorflow as tf
from trainer.data import digits
_, test = digits.load()
(export,) = pathlib.Path("export").iterdir()
serve = tf.saved_model.load(str(export)).signatures["serving_default"]
probabilities = serve(images=tf.constant(test.inputs))["probabilities"].numpy()
print((probabilities.argmax(1) == test.targets).mean())
"""
    output = subprocess.check_output([sys.executable, "-c", program], cwd=trained, text=True)
    best = json.loads((trained / "result.json").read_text())["best"]
    assert float(output) == pytest.approx(best["test_accuracy"], abs=1e-4)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="Ctrl-C", marks=pytest.mark.long),
    ],
)
def test_a_signal_saves_and_the_next_start_resumes(trainer: Trainer, number: signal.Signals) -> None:
    process = trainer.start("train", "--train_steps=1000000", "--train_dir=run", WITHOUT_SAVES)
    read_until(process, "step 100/")
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, output
    (saved,) = (trainer.folder / "run").glob("model.ckpt-*.index")
    step = int(saved.stem.rpartition("-")[2])
    assert step >= 100
    assert f"saved step {step}; continue with the same command and --train_dir run" in output
    code, output = trainer.run("train", f"--train_steps={step + 10}", "--train_dir=run")
    assert code == 0
    assert f"at step {step} of {step + 10}" in output


def test_a_signal_without_a_saved_checkpoint_names_no_step(trainer: Trainer) -> None:
    process = trainer.start("train", "--train_steps=1000000", "--learning_rate=1e38", "--train_dir=run", WITHOUT_SAVES)
    read_until(process, "step 100/")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    assert "no checkpoint was saved; start again with the same command and --train_dir run" in output
    assert "saved step" not in output


def test_a_chief_that_waits_for_a_lost_worker_saves_after_a_signal(trainer: Trainer, hosts: Hosts) -> None:
    words = [*hosts(1, 2), "--sync_replicas", "--train_steps=1000000"]
    ps = trainer.start("train", *words, "--job_name=ps", "--task_index=0")
    chief = trainer.start("train", *words, "--job_name=worker", "--task_index=0", "--train_dir=run")
    worker = trainer.start("train", *words, "--job_name=worker", "--task_index=1")
    line = read_until(chief, "/1000000: loss")  # the reported step varies
    reached = int(line.partition("step ")[2].partition("/")[0])
    worker.kill()
    worker.communicate()
    # The chief's next step waits inside TensorFlow for gradients of the lost worker.
    chief.send_signal(signal.SIGTERM)
    ps.send_signal(signal.SIGTERM)  # as at the stop of a whole run: the ps must not exit before the chief has saved
    output, _ = chief.communicate(timeout=PATIENCE)
    assert chief.returncode == 143, output
    ps_output, _ = ps.communicate(timeout=PATIENCE)
    assert ps.returncode == 143, ps_output
    saved = [int(path.stem.rpartition("-")[2]) for path in (trainer.folder / "run").glob("model.ckpt-*.index")]
    assert max(saved, default=-1) >= reached


@pytest.mark.long
def test_a_parameter_server_restarted_by_hand_ends_with_the_run(trainer: Trainer, hosts: Hosts) -> None:
    words = [*hosts(1, 2), "--train_steps=8000", "--save_steps=200"]
    first_ps = trainer.start("train", *words, "--job_name=ps", "--task_index=0")
    chief = trainer.start("train", *words, "--job_name=worker", "--task_index=0", "--train_dir=run")
    worker = trainer.start("train", *words, "--job_name=worker", "--task_index=1")
    wait_until((trainer.folder / "run" / "checkpoint").exists)  # a chief restores only listed checkpoints
    first_ps.kill()
    first_ps.communicate()
    ps = trainer.start("train", *words, "--job_name=ps", "--task_index=0")
    output, _ = chief.communicate(timeout=PATIENCE)
    assert chief.returncode == 0, output
    assert "restored" in output
    for process in (worker, ps):
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output


def test_a_copied_directory_resumes_and_the_original_is_unchanged(trainer: Trainer, trained: Path) -> None:
    before = sorted(path.name for path in trained.iterdir())
    copy = trainer.folder / "copy"
    shutil.copytree(trained, copy)
    words = ["--save_steps=20", "--keep_checkpoints=2", "--train_steps=900"]
    code, output = trainer.run("train", *words, f"--train_dir={copy}")
    assert code == 0, output
    assert f"restored {copy}/model.ckpt-800" in output
    assert sorted(path.name for path in trained.iterdir()) == before
    assert len(list(copy.glob("model.ckpt-*.index"))) == 2


def test_parameters_of_another_run_are_refused(trainer: Trainer, hosts: Hosts) -> None:
    flags = hosts(1, 1)
    ps = trainer.start("train", *flags, "--job_name=ps", "--task_index=0")
    words = ["train", *flags, "--job_name=worker", "--task_index=0", "--train_steps=1000000"]
    chief = trainer.start(*words, "--train_dir=first")
    read_until(chief, ": loss")
    chief.kill()
    chief.communicate()
    code, output = trainer.run(*words, "--train_dir=second")
    assert code == 2, output
    assert "still hold a run of another model, data set or train_dir" in output
    ps.kill()
    ps.communicate()


@pytest.mark.long
def test_a_worker_that_never_restarts_does_not_prevent_the_end_of_the_run(trainer: Trainer, hosts: Hosts) -> None:
    words = [*hosts(1, 2), "--train_steps=8000"]
    ps = trainer.start("train", *words, "--job_name=ps", "--task_index=0")
    chief = trainer.start("train", *words, "--job_name=worker", "--task_index=0", "--train_dir=run")
    worker = trainer.start("train", *words, "--job_name=worker", "--task_index=1")
    read_until(worker, ": loss")
    worker.kill()
    worker.communicate()
    for process in (chief, ps):
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output


@pytest.mark.long
def test_a_late_worker_joins_a_synchronous_run(trainer: Trainer, hosts: Hosts) -> None:
    words = [*hosts(1, 2), "--sync_replicas", "--replicas_to_aggregate=1", "--train_steps=7000"]
    ps = trainer.start("train", *words, "--job_name=ps", "--task_index=0")
    chief = trainer.start("train", *words, "--job_name=worker", "--task_index=0", "--train_dir=run")
    read_until(chief, "step 100/")
    late = trainer.start("train", *words, "--job_name=worker", "--task_index=1")
    outputs = {}
    for name, process in {"chief": chief, "late": late, "ps": ps}.items():
        outputs[name], _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, outputs[name]
    assert json.loads((trainer.folder / "run" / "result.json").read_text())["global_step"] == 7000


@pytest.mark.long
def test_with_a_backup_a_stopped_worker_does_not_block_the_run(trainer: Trainer, hosts: Hosts) -> None:
    words = [*hosts(1, 3), "--sync_replicas", "--replicas_to_aggregate=2", "--train_steps=3000"]
    ps = trainer.start("train", *words, "--job_name=ps", "--task_index=0")
    chief = trainer.start("train", *words, "--job_name=worker", "--task_index=0", "--train_dir=run")
    fast = trainer.start("train", *words, "--job_name=worker", "--task_index=1")
    slow = trainer.start("train", *words, "--job_name=worker", "--task_index=2")
    read_until(slow, ": loss")
    slow.send_signal(signal.SIGSTOP)
    for process in (chief, fast):
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
    slow.send_signal(signal.SIGCONT)
    for process in (slow, ps):
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
    assert json.loads((trainer.folder / "run" / "result.json").read_text())["global_step"] == 3000


@pytest.mark.long
@pytest.mark.parametrize("stopped", ["worker", "ps"])
def test_an_unresponsive_task_ends_its_peers_with_a_retryable_code(
    trainer: Trainer, hosts: Hosts, stopped: str
) -> None:
    words = [*hosts(1, 2), "--sync_replicas", "--train_steps=1000000", "--stall_seconds=8"]
    ps = trainer.start("train", *words, "--job_name=ps", "--task_index=0")
    chief = trainer.start("train", *words, "--job_name=worker", "--task_index=0", "--train_dir=run")
    worker = trainer.start("train", *words, "--job_name=worker", "--task_index=1")
    read_until(chief, ": loss")
    silent = {"worker": worker, "ps": ps}[stopped]
    silent.send_signal(signal.SIGSTOP)
    output, _ = chief.communicate(timeout=PATIENCE)
    assert chief.returncode == 138
    assert "no global step within 8 s: taking steps, waiting for " in output
    named = next(line for line in output.splitlines() if "no global step" in line)
    assert f" {stopped} " in named, output
    assert ": it accepts connections, but does not answer" in named, output
    assert "\nTraceback" not in output
    silent.send_signal(signal.SIGCONT)
    for process in (worker, ps):
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("localhost", "refused"),
        pytest.param("no-such-host.invalid", "does not resolve", marks=pytest.mark.long),
        pytest.param("silent", "no answer within", marks=pytest.mark.long),
    ],
)
def test_a_wrong_peer_address_is_named_with_the_reason(trainer: Trainer, hosts: Hosts, host: str, reason: str) -> None:
    own = hosts(0, 1)[1].partition("=")[2]
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        waiting = []
        if host == "silent":  # a listener with a full queue drops packets, as a firewall does
            listener.listen(0)
            for _ in range(3):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(listener.getsockname())
        peer = f"{'localhost' if host == 'silent' else host}:{listener.getsockname()[1]}"
        code, output = trainer.run(
            "train", f"--ps_hosts={peer}", f"--worker_hosts={own}", "--job_name=worker", "--task_index=0",
            "--wait_seconds=8", "--train_dir=run",
        )  # fmt: skip
        for each in waiting:
            each.close()
    assert code == 138, output
    messages = [line for line in output.splitlines() if f"waiting for ps 0 at {peer}" in line and reason in line]
    assert len(messages) >= 1, output
    (last,) = [line for line in output.splitlines() if line.startswith("trainer: ")]
    assert peer in last
    assert reason in last
    assert "\nTraceback" not in output


@pytest.mark.long
def test_a_worker_logs_that_the_chief_does_not_start(trainer: Trainer, hosts: Hosts) -> None:
    flags = hosts(1, 2)
    ps = trainer.start("train", *flags, "--job_name=ps", "--task_index=0")
    code, output = trainer.run("train", *flags, "--job_name=worker", "--task_index=1", "--wait_seconds=7")
    assert code == 138, output
    assert "waiting for the chief (worker 0)" in output
    assert "did not begin the run within 7 s" in output
    ps.terminate()
    ps.communicate(timeout=PATIENCE)
    assert ps.returncode == 143


def sentence_of(output: str) -> str:
    """The one sentence in which a task that has started reports an error; the log has its start and its end before."""
    *log, sentence = output.splitlines()
    assert ["started" in log[0], "ended" in log[1], len(log)] == [True, True, 2], output
    assert sentence.startswith("trainer: ")
    return sentence


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        pytest.param(["--model=cnn"], "different model", marks=pytest.mark.long),
        (["--hidden_units=7"], "different parameters"),
        pytest.param(["--dataset=npz"], "dataset", marks=pytest.mark.long),
    ],
)
def test_a_directory_of_another_run_is_refused(
    trainer: Trainer, trained: Path, words: list[str], difference: str
) -> None:
    import numpy as np

    np.savez(trainer.folder / "train.npz", x=np.zeros((50, 28, 28), np.uint8), y=np.arange(50) % 10)
    shutil.copytree(trained, trainer.folder / "run")
    before = (trainer.folder / "run" / "run.json").read_bytes()
    data = [f"--data_dir={trainer.folder}"] if "--dataset=npz" in words else []
    code, output = trainer.run("train", "--train_dir=run", *data, *words)
    assert code == 2
    assert difference in sentence_of(output)
    assert (trainer.folder / "run" / "run.json").read_bytes() == before


@pytest.mark.long
def test_the_previous_checkpoint_replaces_a_damaged_one(trainer: Trainer) -> None:
    words = ["train", "--train_dir=run", "--save_steps=50"]
    assert trainer.run(*words, "--train_steps=100")[0] == 0
    (trainer.folder / "run" / "model.ckpt-100.data-00000-of-00001").write_bytes(b"cut off")
    code, output = trainer.run(*words, "--train_steps=120")
    assert code == 0, output
    assert "model.ckpt-100 cannot be read" in output
    assert "at step 50 of 120" in output
    for path in (trainer.folder / "run").glob("model.ckpt-*.data*"):
        path.write_bytes(b"cut off")
    code, output = trainer.run(*words, "--train_steps=130")
    assert code == 2
    assert "none of the checkpoints in run can be read" in output


@pytest.mark.long
def test_checkpoints_fit_any_number_of_parameter_servers(trainer: Trainer) -> None:
    words = ["--train_dir", "run", "--sync_replicas", "--train_steps"]
    assert trainer.launch("--ps", "1", "--workers", "1", *words, "50")["global_step"] == 50
    assert trainer.launch("--ps", "3", "--workers", "2", *words, "100")["global_step"] == 100
    code, output = trainer.run("train", *words, "600")
    assert code == 0, output
    assert "at step 100 of 600" in output


def test_a_chief_started_again_after_the_end_does_not_wait_for_its_parameter_servers(
    trainer: Trainer, hosts: Hosts, trained: Path
) -> None:
    shutil.copytree(trained, trainer.folder / "run")
    words = [*hosts(1, 1), "--job_name=worker", "--task_index=0", "--train_dir=run"]
    code, output = trainer.run("train", *words, "--train_steps=800", "--wait_seconds=3")
    assert code == 0, output
    assert "the run was done before" in output


@pytest.mark.long
def test_a_restarted_evaluator_resumes(trainer: Trainer, hosts: Hosts) -> None:
    assert trainer.run("train", "--train_steps=100", "--save_steps=50", "--train_dir=run")[0] == 0
    words = ["train", *hosts(1, 1), "--job_name=evaluator", "--task_index=0", "--train_dir=run"]
    code, output = trainer.run(*words, "--train_steps=100")
    assert code == 0, output
    assert output.count("test accuracy") == 2
    more = trainer.start(*words, "--train_steps=150")
    assert trainer.run("train", "--train_steps=150", "--train_dir=run")[0] == 0
    output, _ = more.communicate(timeout=PATIENCE)
    assert more.returncode == 0
    assert output.count("test accuracy") == 1


def test_progress_lines_come_once_a_second_at_most_and_at_the_end(trainer: Trainer) -> None:
    began = time.monotonic()
    code, output = trainer.run("train", "--train_steps=2000", "--report_steps=1", "--train_dir=run")
    found = [progress.step for line in output.splitlines() if (progress := parse(line))]
    assert code == 0
    assert found[-1] == 2000
    assert len(found) <= time.monotonic() - began + 2


def test_a_single_process_names_the_commands_that_come_next(trainer: Trainer) -> None:
    for run in ("first", "second"):
        code, output = trainer.run("train", "--train_steps=300", f"--train_dir=runs/{run}", WITHOUT_EVALUATIONS)
        assert code == 0
    lines = [line.partition("next: ")[2] for line in output.splitlines() if "next: " in line]
    assert [line.partition("trainer ")[2] for line in lines] == [
        "report runs/second   # a page on the run",
        "models predict runs/second --data FOLDER --output predictions   # what it predicts for other data",
        "models compare runs/first runs/second   # with the last run on this data",
    ]
