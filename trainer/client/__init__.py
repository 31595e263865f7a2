"""Runs in a Kubernetes cluster, from Python: submit one, list them, follow one, get its files, delete it.

    from trainer import client
    from trainer.config import load_values

    settings = load_values({"model": "mine.py", "epochs": 3})
    submission = client.prepare(settings, client.Tasks(ps=1, workers=2), registry="registry.example.com/team")
    cluster = client.Cluster(namespace="research")
    client.install(cluster, submission)
    run = client.follow(cluster, submission.name, say=print)
    client.fetch(cluster, run.name, Path("out"))

It takes kubectl and helm on PATH, and imports no TensorFlow. Errors are `ConfigurationError` and, of object
stores, `StoreError`, both of `trainer.errors`.
"""

from trainer.client.cluster import Cluster, UnreachableError
from trainer.client.files import fetch, read_result
from trainer.client.following import follow
from trainer.client.logs import of_supervisor as supervisor_log
from trainer.client.logs import of_task as task_log
from trainer.client.runs import Run, delete, find, list_runs, resume, suspend
from trainer.client.submission import Submission, check_model, install, prepare
from trainer.client.values import Tasks

__all__ = [
    "Cluster",
    "Run",
    "Submission",
    "Tasks",
    "UnreachableError",
    "check_model",
    "delete",
    "fetch",
    "find",
    "follow",
    "install",
    "list_runs",
    "prepare",
    "read_result",
    "resume",
    "supervisor_log",
    "suspend",
    "task_log",
]
