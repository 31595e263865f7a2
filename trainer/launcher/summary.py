"""What the launcher prints at the end of a run: the result, the reason of a failure, and the next command."""

import contextlib
import json
import signal
from collections.abc import Iterable, Mapping

from trainer import config
from trainer.errors import ConfigurationError
from trainer.launcher.output import say, warn, write
from trainer.launcher.plan import CONFIG, MAX_RESTARTS, Plan
from trainer.launcher.processes import Process, is_permanent, name_of
from trainer.run_directory.next_commands import next_commands
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.telemetry import goodput, report, result
from trainer.text.command_lines import command_line

LAST_LINES = 20
MORE = 5
"""How many times as long a run becomes by the command that trains it on."""
SENTENCE = "trainer: "
"""The prefix of a task's last line if it names the reason of a failure."""


def explain_failure(failed: Process, code: int, max_restarts: int) -> None:
    """Print why a task failed: what has ended it too often, its error sentence, or the last lines of its log."""
    if failed.restarts and not is_permanent(code):
        times = "once" if failed.restarts == 1 else f"{failed.restarts} times"
        cause = "what ends it, such as a lack of memory" if code == -signal.SIGKILL else "what ends it"
        warn(
            f"\n{failed.task} was restarted {times} and has ended again ({name_of(code)}): find out {cause}, or raise "
            f"--max_restarts ({max_restarts})."
        )
    text = failed.log.read_text(encoding="utf-8", errors="replace")
    lines = [report.split(line)[0] for line in text.splitlines()[-LAST_LINES:]]
    sentence = lines[-1].removeprefix(SENTENCE) if lines and lines[-1].startswith(SENTENCE) else ""
    if sentence and code > 0:  # a killed task has not logged a reason
        warn(f"\n{failed.task} failed for good: {sentence} Its log is {failed.log}.")
        return
    if code in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM):
        warn(f"\n{failed.task} failed for good. Its log is {failed.log}.")
        return
    warn(f"\n{failed.task} failed for good; the last lines of {failed.log}:")
    for line in lines:
        warn(f"    {line}")


def show_result(directory: TrainingDirectory, plan: Plan, restarts: Mapping[str, int]) -> None:
    """Print the result of a run, as text or as one line of JSON.

    Args:
        directory: The training directory.
        plan: What was launched.
        restarts: By task: how often it was restarted.

    Raises:
        ConfigurationError: the JSON cannot be written.
    """
    found = directory.read_result()
    if plan.json:
        try:
            write(json.dumps(found))
        except OSError as error:
            raise ConfigurationError(
                f"--json: the result cannot be printed ({error.strerror}); it is in {directory}/result.json."
            ) from None
        return
    say(
        f"""
{result.describe(found)} after {found["global_step"]} global steps in {found["seconds"]:.1f} s \
({found["steps_per_second"]:.0f} steps/s), {found["mode"]}, {found["workers"]} replicas, {found["ps"]} ps
{f"{used}{chr(10)}" if (used := goodput.describe(goodput.read(found))) else ""}\
{f"{again}{chr(10)}" if (again := _restarts(restarts)) else ""}\
{f"{compared}{chr(10)}" if (compared := result.against_baseline(found)) else ""}
  result       {directory}/result.json
  checkpoint   {found["checkpoint"]}
  model        {found["export"]} (SavedModel)
  summaries    {directory.public(directory.train_summaries)}, {directory.public(directory.test_summaries)}
  logs         {directory.logs}

next:
  {_tensorboard(directory)}          # show the curves
  {_resume_command(plan, directory, *_more_steps(plan, directory))}   # train on from here
{_format_commands(next_commands(directory, found))}"""
    )


def _restarts(restarts: Mapping[str, int]) -> str:
    """Which tasks were restarted, and how often; empty if none was."""
    found = [f"{task} {'once' if count == 1 else f'{count} times'}" for task, count in restarts.items() if count]
    return f"restarted: {', '.join(found)}" if found else ""


def _more_steps(plan: Plan, directory: TrainingDirectory) -> tuple[str, int]:
    """The setting with which the run trains on: epochs if it had these, otherwise steps."""
    try:
        settings = config.load_file(directory.settings)  # those of its chief, which knows the epochs of a model's file
    except ConfigurationError:
        settings = plan.settings
    if settings.epochs:
        return "--epochs", MORE * settings.epochs
    return "--train_steps", MORE * settings.train_steps


def _format_commands(commands: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"  {command}          # {purpose}" for command, purpose in commands)


def _tensorboard(directory: TrainingDirectory) -> str:
    words = ("--logdir", directory)
    return command_line("trainer", "tensorboard", *words) if directory.uri else command_line("tensorboard", *words)


def _resume_command(plan: Plan, directory: TrainingDirectory, *more: object) -> str:
    """Return the command that continues this run."""
    roles = ["--ps", plan.ps, "--workers", plan.workers]
    roles += ["--chief"] * plan.chief + ["--evaluator"] * plan.evaluator
    restarts = ["--max_restarts", plan.max_restarts] if plan.max_restarts != MAX_RESTARTS else []
    return command_line("trainer", "launch", "--config", directory.logs / CONFIG, *roles, *restarts, *more)


def print_resume_command(plan: Plan, directory: TrainingDirectory) -> None:
    """Print what a terminated run has saved, and the command that continues it."""
    step = directory.newest_step()
    with contextlib.suppress(ConfigurationError):
        if used := goodput.describe(goodput.read(directory.read_result())):
            warn(used)
    saved = "no checkpoint was saved; start again" if step is None else f"saved step {step}; continue"
    warn(f"{saved} with: {_resume_command(plan, directory)}")
