"""A namespace of a Kubernetes cluster, through the user's own kubectl and helm.

These find the cluster and its credentials as they always do: by KUBECONFIG, contexts, plug-ins and a pod's account.
"""

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from trainer.errors import ConfigurationError

INSTALLED_BY = {
    "helm": "install Helm 3.14 or later, or 4, as https://helm.sh/docs/intro/install says",
    "kubectl": "install it, as https://kubernetes.io/docs/tasks/tools says",
}
"""How to get each program."""
UNREACHABLE = (
    "unable to connect to the server",
    "the connection to the server",
    "kubernetes cluster unreachable",
    "i/o timeout",
    "unexpected eof",
    "connection refused",
    "connection reset",
    "etcdserver:",
    "the server is currently unable",
)
"""What errors say that may pass."""
NO_CLUSTER = "localhost:8080"
"""The server that kubectl and helm try if no kubeconfig names one."""
LOG_LINE = re.compile(r"[IEW]\d{4} |WARNING|level=")
"""Matches what kubectl and helm log beside their error."""
TEXT: Mapping[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace"}
"""How the output of a program is read."""


class UnreachableError(ConfigurationError):
    """The cluster does not answer: one sentence. Another attempt may succeed."""


@dataclass(frozen=True)
class Release:
    """A release of helm."""

    chart: str
    version: str
    """That of the chart."""


@dataclass(frozen=True)
class Cluster:
    """A namespace of a cluster; without names, those that kubectl uses."""

    context: str | None = None
    namespace: str | None = None

    @property
    def options(self) -> list[str]:
        """The options of commands of this package that lead to this namespace."""
        context = ["--context", self.context] if self.context else []
        return context + (["--namespace", self.namespace] if self.namespace else [])

    def command(self, program: str, *words: str) -> list[str]:
        """The command line of kubectl or helm with these words."""
        context = "--kube-context" if program == "helm" else "--context"
        options = [f"{context}={self.context}"] if self.context else []
        options += [f"--namespace={self.namespace}"] if self.namespace else []
        return [program, *options, *words]

    def kubectl(self, *words: str, text: str = "") -> str:
        """Run kubectl, with this text as its input, and return its output.

        Raises:
            ConfigurationError: it fails, or is not on PATH.
            UnreachableError: the cluster does not answer.
        """
        return _run(self.command("kubectl", *words), text)

    def pipe(self, *words: str, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
        """Run kubectl with files as its input and its output. Raises what `kubectl` does."""
        command = self.command("kubectl", *words)
        _check(command)
        done = subprocess.run(command, stdin=stdin, stdout=stdout or subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode:
            raise error_of(command, done.stderr.decode(errors="replace"))

    @contextlib.contextmanager
    def logs(self, pod: str, *options: str) -> Iterator[Iterator[str]]:
        """The lines of the log of a pod. They end with the log, or with the connection.

        Raises what `kubectl` does, if there are no lines.
        """
        command = self.command("kubectl", "logs", pod, *options)
        _check(command)
        with tempfile.TemporaryFile() as errors:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
                count = 0

                def lines() -> Iterator[str]:
                    nonlocal count
                    for line in process.stdout or ():
                        count += 1
                        yield line.decode("utf-8", "replace").rstrip("\n")

                try:
                    yield lines()
                finally:
                    process.terminate()
            errors.seek(0)
            if not count and process.returncode > 0:
                raise error_of(command, errors.read().decode(errors="replace"))

    def helm(self, *words: str) -> str:
        """Run helm and return its output. Raises what `kubectl` does."""
        return _run(self.command("helm", *words), "")

    def release(self, name: str) -> Release | None:
        """The release of this name, whatever its chart and state; None if there is none. Raises what `kubectl` does."""
        try:
            found = json.loads(self.helm("get", "metadata", name, "--output=json"))
        except ConfigurationError as error:
            if "release: not found" in str(error):
                return None
            raise
        return Release(str(found.get("chart")), str(found.get("version")))

    def items(self, kinds: str, selector: Mapping[str, str]) -> list[dict[str, Any]]:
        """The objects of these kinds, such as "jobs,pods", with these labels. Raises what `kubectl` does."""
        labels = ",".join(f"{name}={value}" for name, value in selector.items())
        return list(json.loads(self.kubectl("get", kinds, f"--selector={labels}", "--output=json"))["items"])


def _check(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        raise ConfigurationError(f"{command[0]} is not on PATH: {INSTALLED_BY[command[0]]}.")


def _run(command: list[str], text: str) -> str:
    _check(command)
    done = subprocess.run(command, input=text, capture_output=True, **TEXT)
    if done.returncode:
        raise error_of(command, done.stderr)
    return str(done.stdout)


def error_of(command: list[str], stderr: str) -> ConfigurationError:
    """The error of a command of kubectl or helm that has failed, from what it has written to its error output."""
    lines = [line for line in stderr.splitlines() if line.strip() and not LOG_LINE.match(line)]
    reason = " ".join(" ".join(lines or ["it does not say why"]).split())
    for prefix in ("Error from server ", "Error: INSTALLATION FAILED: ", "Error: ", "error: "):
        reason = reason.removeprefix(prefix)
    if NO_CLUSTER in reason or "current-context is not set" in reason:
        return ConfigurationError(
            f"{command[0]} finds no cluster: set KUBECONFIG to a kubeconfig, or name a context of it with --context."
        )
    words = " ".join([command[0], *[word for word in command[1:] if not word.startswith("-")][:2]])
    sentence = f"{words} failed: {reason.rstrip('.')}."
    is_passing = any(each in reason.lower() for each in UNREACHABLE)
    return UnreachableError(sentence) if is_passing else ConfigurationError(sentence)
