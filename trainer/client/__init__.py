"""Runs in a Kubernetes cluster, from Python: submit one, list them, follow one, get its files, delete it.

    from trainer import client
    from trainer.config import load_values

    settings = load_values({"model": "mine.py", "epochs": 3})
    submission = client.prepare(settings, client.Tasks(ps=1, workers=2), registry="registry.example.com/team")
    cluster = client.Cluster(namespace="research")
    client.install(cluster, submission, print)
    run = client.follow(cluster, submission.name, print)
    client.fetch(cluster, run.name, Path("out"))

It takes kubectl and helm on PATH, and imports no TensorFlow. Errors are `trainer.errors.ConfigurationError`.
"""

from trainer.client.cluster import Cluster, UnreachableError
from trainer.client.files import fetch
from trainer.client.following import follow
from trainer.client.runs import Run, delete, find, find_all, suspend
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
    "find_all",
    "follow",
    "install",
    "prepare",
    "suspend",
]
