"""The commands `trainer submit`, `runs`, `logs`, `follow`, `fetch`, `stop`, `resume` and `delete`."""

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainer import config, mode
from trainer.client import bundle, chart, files, logs, runs, submission
from trainer.client.cluster import Cluster
from trainer.client.following import follow
from trainer.client.runs import Run
from trainer.client.values import COMPLETE, SUBMITTED, Tasks
from trainer.errors import EXIT_FAILED_RUN, ConfigurationError
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.telemetry import goodput, result
from trainer.text import truncate
from trainer.text.command_lines import command_line

TASK = re.compile(r"(chief|worker|ps|evaluator|client)-\d+")
CODES: Mapping[str, int] = {"Succeeded": 0, "Failed": EXIT_FAILED_RUN, "Suspended": 1}
"""The exit codes by the state in which a run was left."""
AFTER: Mapping[str, Sequence[str]] = {
    "Succeeded": ("fetch", "delete"),
    "Failed": ("logs", "fetch", "delete"),
    "Suspended": ("resume", "delete"),
}
"""The commands that may follow then."""


def main(command: str, words: Sequence[str]) -> int:
    """Run one of the commands with these arguments; return its exit code.

    Raises:
        ConfigurationError: the arguments are wrong, or the cluster refuses what is asked.
    """
    try:
        return COMMANDS[command](words)
    except KeyboardInterrupt:
        return 130


def _parser(command: str, description: str, *, of_run: bool = True) -> config.Parser:
    parser = config.Parser(prog=f"trainer {command}", description=description)
    if of_run:
        parser.add_argument("name", metavar="NAME", help="the run, as trainer runs lists it")
    return parser


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    section = parser.add_argument_group("the cluster")
    section.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    section.add_argument("--namespace", metavar="NAME", help="namespace (default: that of the context)")


def _cluster(arguments: argparse.Namespace) -> Cluster:
    return Cluster(arguments.context, arguments.namespace)


def make_parser() -> config.Parser:
    """The parser of `trainer submit`."""
    parser = _parser(
        "submit",
        "Train in a Kubernetes cluster, with the options of trainer launch: install the chart with the model's file\n"
        "and the files beside it, and follow the run to its end. Ctrl-C leaves it running.\n"
        f"Up to {bundle.LARGEST_CONFIG_MAP / 1e6:g} MB of files go into a ConfigMap, up to "
        f"{bundle.LARGEST / 1e6:,.0f} MB to the training volume. In a git work tree, what\n"
        ".gitignore names is left out. It takes kubectl and helm on PATH.",
        of_run=False,
    )
    tasks = parser.add_argument_group("the tasks")
    config.add_tasks(tasks)
    tasks.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs of each worker (default: 0)")
    tasks.add_argument("--max_restarts", type=int, metavar="N", help="incidents after which the run fails (default: 6)")
    run = parser.add_argument_group("the run")
    run.add_argument("--name", metavar="NAME", help="its name (default: that of the model and four digits)")
    run.add_argument("--registry", metavar="HOST/PATH", help="registry of the packaged images (default: on the nodes)")
    run.add_argument(
        "--values", metavar="FILE", type=Path, action="append", default=[], help="more values of the chart; repeatable"
    )
    run.add_argument("--detach", action="store_true", help="end when the run is installed")
    run.add_argument("--dry_run", action="store_true", help="print the values and the commands, and install nothing")
    run.add_argument("--skip_check", action="store_true", help="do not load the model's file here first")
    run.add_argument("--json", action="store_true", help="print only how it ended, as one line of JSON")
    _add_cluster(parser)
    config.add_settings(parser, config.RUN_GROUPS)
    return parser


def _submit(words: Sequence[str]) -> int:
    arguments = make_parser().read(words)
    settings = config.load(arguments, os.environ)
    ps = mode.default_ps(settings.strategy) if arguments.ps is None else arguments.ps
    tasks = Tasks(ps, arguments.workers, arguments.chief, arguments.evaluator, arguments.gpus, arguments.max_restarts)
    if arguments.print_config:
        print(config.to_yaml(settings), end="")
        return 0
    wanted = submission.prepare(settings, tasks, arguments.name, arguments.values, arguments.registry)
    cluster = _cluster(arguments)
    if arguments.dry_run:
        print(_by_hand(cluster, wanted), end="")
        return 0
    say = _to_stderr if arguments.json else _say
    submission.check_free(cluster, wanted)
    if wanted.bundle:
        say(f"packed {wanted.bundle}")
    if not arguments.skip_check and submission.check_model(wanted, settings):
        say(f"loaded {settings.model} from these files")
    try:
        submission.install(cluster, wanted, say)
    except KeyboardInterrupt:
        remedy = _command(cluster, "delete", wanted.name)
        _to_stderr(f"\ninterrupted; what is installed has not all of its files, and is removed by: {remedy}")
        raise
    say(f"installed the run {wanted.name}")
    if arguments.detach or not wanted.has_supervisor:
        if arguments.json:
            print(json.dumps({"name": wanted.name, "state": "Pending"}))
        say(_next(cluster, wanted.name, ("follow", "logs", "stop", "delete") if wanted.has_supervisor else ("delete",)))
        return 0
    return _follow_run(cluster, wanted.name, say, arguments.json)


def _by_hand(cluster: Cluster, wanted: submission.Submission) -> str:
    """The values with the commands of `trainer submit` in a comment."""
    lines = [f"The values of the run {wanted.name}. In a file VALUES, they are installed with:", ""]
    if wanted.bundle and not wanted.is_uploaded:
        keys = [f"--from-file={key}={wanted.bundle.files[path]}" for path, key in wanted.bundle.keys().items()]
        create, remove = (
            cluster.command("kubectl", word, "configmap", wanted.config_map) for word in ("create", "delete")
        )
        lines += [shlex.join([*create, *keys]), f"{shlex.join(remove)}    # at the end"]
    own = [f"--values={file}" for file in wanted.files]
    lines.append(
        shlex.join(cluster.command("helm", "install", wanted.name, str(chart.path()), *own, "--values=VALUES"))
    )
    if wanted.bundle and wanted.is_uploaded:
        lines += [
            "",
            f"The stage {SUBMITTED} then waits for {wanted.bundle} in {wanted.folder}, and the file {COMPLETE} there.",
        ]
    comment = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return f"{comment}\n{wanted.to_yaml()}"


def _follow(words: Sequence[str]) -> int:
    parser = _parser(
        "follow", "Follow a run to its end: what it waits for, its progress, its result. Ctrl-C leaves it."
    )
    _add_cluster(parser)
    arguments = parser.read(words)
    return _follow_run(_cluster(arguments), arguments.name, _say, False)


def _follow_run(cluster: Cluster, name: str, say: Callable[[str], None], as_json: bool) -> int:
    try:
        run = follow(cluster, name, say)
    except KeyboardInterrupt:
        _to_stderr(f"\nthe run {name} goes on\n{_next(cluster, name, ('follow', 'logs', 'stop', 'delete'))}")
        return 130
    if as_json:
        content = files.read_result(cluster, name) if run.state == "Succeeded" else None
        print(json.dumps({"name": name, "state": run.state, "outcome": run.outcome, "result": content}))
    if run.state == "Suspended":
        say(f"the run {name} is suspended: its tasks have ended, and their resources are free")
    say(_next(cluster, name, AFTER[run.state]))
    return CODES[run.state]


PURPOSES = {
    "follow": ([], "its progress, until its end"),
    "logs": ([], "what its supervisor logs; --task worker-0: a task's log"),
    "fetch": (["out"], "copy the result, the models and the curves to out/"),
    "stop": ([], "end its tasks; trainer resume continues it"),
    "resume": ([], "continue from the last checkpoint"),
    "delete": ([], "uninstall it; --data deletes its volume too"),
}


def _next(cluster: Cluster, name: str, commands: Sequence[str]) -> str:
    found = []
    for command in commands:
        more, purpose = PURPOSES[command]
        found.append(f"  {_command(cluster, command, name, *more)}    # {purpose}")
    return "\n".join(["next:", *found])


def _command(cluster: Cluster, command: str, name: str, *more: str) -> str:
    return command_line("trainer", command, *cluster.options, name, *more)


def _runs(words: Sequence[str]) -> int:
    parser = _parser("runs", "List the runs of a namespace that have a supervisor, the newest first.", of_run=False)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_cluster(parser)
    arguments = parser.read(words)
    found = runs.list_runs(_cluster(arguments))
    if arguments.json:
        print(json.dumps([{**dataclasses.asdict(run), "created": run.created.isoformat()} for run in found]))
        return 0
    rows = [("NAME", "STATE", "AGE", "LAST"), *[(run.name, run.state, run.age, _last(run)) for run in found]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows if found else ():
        line = "  ".join([*[text.ljust(width) for text, width in zip(row, widths, strict=False)], row[3]]).rstrip()
        print(truncate(line, shutil.get_terminal_size().columns) if sys.stdout.isatty() else line)
    if not found:
        _to_stderr("there are no runs in the namespace")
    return 0


def _last(run: Run) -> str:
    return run.outcome.removeprefix(f"the run {run.state.lower()}: ") or run.progress


def _logs(words: Sequence[str]) -> int:
    parser = _parser("logs", "Print the log of a run's supervisor, or of a task; also of one whose pod is gone.")
    parser.add_argument("--task", metavar="TASK", help="such as worker-1")
    parser.add_argument("--follow", action="store_true", help="go on until the log ends")
    _add_cluster(parser)
    arguments = parser.read(words)
    cluster, task = _cluster(arguments), arguments.task
    run = runs.find(cluster, arguments.name)
    if task and not TASK.fullmatch(task):
        raise ConfigurationError(f"--task: {task!r} is not a task; name a role and a number, such as worker-1.")
    on = arguments.follow
    lines = logs.of_task(cluster, run.name, task, on) if task else logs.of_supervisor(cluster, run.name, on)
    for line in lines:
        print(line, flush=True)
    return 0


def _fetch(words: Sequence[str]) -> int:
    parser = _parser(
        "fetch", "Copy the files of a run: result, settings, exported models, curves, logs; and a page about it."
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where to; files of the same names are replaced")
    parser.add_argument("--checkpoints", action="store_true", help="copy the checkpoints too")
    _add_cluster(parser)
    arguments = parser.read(words)
    names = files.fetch(_cluster(arguments), arguments.name, arguments.folder, arguments.checkpoints)
    print(f"copied {len(names)} file{'' if len(names) == 1 else 's'} to {arguments.folder}")
    if "result.json" not in names:  # an older one there may be that of another run
        print("there is no result")
        return 0
    found = TrainingDirectory(arguments.folder).read_result()
    if found.get("state") == "done":
        print(result.describe(found))
        if used := goodput.describe(goodput.read(found)):
            print(used)
    else:
        print(f"the run is not done: it was at step {found.get('global_step', 0)}")
    _write_report(arguments.folder)
    return 0


def _write_report(folder: Path) -> None:
    """Write the page about the run, where TensorFlow is installed."""
    command = [sys.executable, "-m", "trainer", "report", str(folder)]
    if importlib.util.find_spec("tensorflow") is None:
        print(f"next: {command_line('trainer', 'report', folder)}    # a page about the run; it takes TensorFlow")
        return
    done = subprocess.run(command, capture_output=True, text=True)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    print(f"report: {lines[-1].removeprefix('trainer: ') if lines else 'none'}")


def _change(command: str, description: str, change: Callable[[Cluster, str], None], done: str) -> Callable[..., int]:
    def run(words: Sequence[str]) -> int:
        parser = _parser(command, description)
        _add_cluster(parser)
        arguments = parser.read(words)
        change(_cluster(arguments), arguments.name)
        print(done.format(name=arguments.name))
        return 0

    return run


def _delete(words: Sequence[str]) -> int:
    parser = _parser("delete", "Uninstall a run, whether it has ended or not.")
    parser.add_argument("--data", action="store_true", help="also delete its volumes, with checkpoints and results")
    _add_cluster(parser)
    arguments = parser.read(words)
    cluster = _cluster(arguments)
    kept = runs.delete(cluster, arguments.name, arguments.data)
    print(f"deleted the run {arguments.name}{' and its data' if arguments.data else ''}")
    if kept:
        print(
            f"kept {', '.join(kept)} with its checkpoints and results: a run of this name continues from them; "
            f"{_command(cluster, 'delete', arguments.name, '--data')} deletes them"
        )
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "submit": _submit,
    "runs": _runs,
    "logs": _logs,
    "follow": _follow,
    "fetch": _fetch,
    "stop": _change(
        "stop",
        "End the tasks of a run and free their resources; it keeps its files, and trainer resume continues it.",
        runs.suspend,
        "the run {name} saves and ends its tasks",
    ),
    "resume": _change(
        "resume",
        "Let a run that was stopped go on from its last checkpoint.",
        runs.resume,
        "the run {name} goes on",
    ),
    "delete": _delete,
}
