"""The command `python -m tests.cluster`: words in, exit code out; every error becomes one sentence here.

A person or `make` calls it, and the fixture of `tests/e2e`. It holds the order of things.
What `up` does, `down` undoes.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tests.cluster import build, engine, kubernetes, packages
from tests.cluster.errors import ClusterError, UsageError
from tests.cluster.places import CACHE, KUBECONFIG, STATE
from tests.cluster.progress import step

USAGE = """usage: python -m tests.cluster COMMAND

A throw-away Kubernetes on this machine. Needs Linux, root, Python and Go; Debian's packages it installs itself.

commands:
  build       the binaries, once for each version of tests/cluster/modules: minutes; afterwards nothing
  build NAME  only these programs, such as helm and ct, in whose place without Go those on PATH do
  engine      the Docker engine and its base image only, to build images before there is a cluster
  up          start what does not run, and say how to reach it
  load IMAGE  take an image from the local Docker engine onto the node
  status      say what runs
  down        end all of it and leave the machine as it was before `up`
"""


def main(words: Sequence[str]) -> int:
    """Run the command of these words and return its exit code."""
    commands: dict[str, Callable[[], int]] = {
        "build": partial(_build, words[1:]),
        "engine": _engine,
        "up": _up,
        "status": _status,
        "down": _down,
    }
    try:
        if list(words) in (["--help"], ["-h"], ["help"]):
            print(USAGE, end="")
            return 0
        if (len(words) == 1 and words[0] in commands) or words[:1] == ["build"]:
            run = commands[words[0]]
        elif len(words) == 2 and words[0] == "load":
            run = partial(_load, words[1])
        else:
            raise UsageError(f"{' '.join(words) or 'nothing'!r} is no command; --help lists them.")
        with _one_at_a_time():
            return run()
    except UsageError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 2
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = os.open(CACHE, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _need_root(
    otherwise: str = "a cluster on this machine takes Linux and root: run this as root, or set KUBECONFIG instead.",
) -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UsageError(otherwise)


def _build(programs: Sequence[str]) -> int:
    if programs:
        build.ensure_programs(programs)
    else:
        build.ensure()
    print(build.binaries())
    return 0


def _engine() -> int:
    if engine.answers() and engine.has_base_image():
        return 0  # a person's own engine, for which no root is needed
    _need_root(
        f"no Docker engine answers that has {engine.BASE_IMAGE} or gets it from a registry: "
        "start yours, or run this as root on Linux to have one started."
    )
    packages.ensure(packages.CLUSTER)
    engine.start()
    if not engine.has_base_image():
        with step(engine.BASE_IMAGE):
            engine.make_base_image()
    return 0


def _up() -> int:
    _need_root()
    packages.ensure(packages.CLUSTER)
    _engine()
    build.ensure()
    print(f"starting in {STATE}")
    kubernetes.start()
    print(f"export KUBECONFIG={KUBECONFIG} PATH={build.binaries()}:$PATH")
    return 0


def _load(image: str) -> int:
    _need_root()
    with step(image):
        kubernetes.load(image)
    return 0


def _status() -> int:
    _need_root()
    running = kubernetes.state()
    for name, runs in running.items():
        print(f"  {name:<32} {'runs' if runs else 'does not run'}")
    print(f"  {'Docker engine':<32} {'answers' if engine.answers() else 'does not answer'}")
    if not all(running.values()):
        print("`up` starts what does not run" if any(running.values()) else "there is no cluster; `up` starts one")
        return 1
    ready = kubernetes.node_is_ready()
    print(f"  {kubernetes.NODE:<32} {'is ready' if ready else 'is not ready'}")
    print(f"export KUBECONFIG={KUBECONFIG}")
    return 0 if ready else 1


def _down() -> int:
    _need_root()
    with step("end"):
        kubernetes.BOX.stop()
        engine.stop()
        shutil.rmtree(STATE, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
