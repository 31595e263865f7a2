"""The command `python -m hack.cluster`: parses arguments, runs the steps of a command in order, returns an exit code.

Users, `make` and the fixtures of `tests/e2e` call it. It prints each error as one sentence. `down` undoes `up`.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hack.cluster import build, engine, kubernetes, packages
from hack.cluster.errors import ClusterError, UsageError
from hack.cluster.node import FIRST, SANDBOX
from hack.cluster.paths import CACHE, KUBECONFIG, STATE
from hack.cluster.progress import step

USAGE = """usage: python -m hack.cluster COMMAND

Run a throw-away Kubernetes on this machine. Requires Linux, root, Python and Go; installs Debian packages as needed.

commands:
  build          build all binaries: minutes for a new version of hack/cluster/modules, otherwise no time
  build NAME...  build these programs only, such as helm and ct; without Go, use those on PATH
  engine         start only the Docker engine and get the base image, to build images without a cluster
  up             start everything of the first node that is not running, and print how to reach the cluster
  load IMAGE     copy an image from the local Docker engine to the node
  add-node IMAGE...
                 start a second node with these images; it takes only pods that tolerate its taint
  status         print what is running
  down           stop everything and undo `up`
"""


def main(words: Sequence[str]) -> int:
    """Run the command in `words` and return its exit code."""
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
        elif words[:1] == ["add-node"]:
            run = partial(_add_node, words[1:])
        else:
            raise UsageError(f"invalid command {' '.join(words)!r}; --help lists the commands and their arguments.")
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
    message: str = "a cluster on this machine requires Linux and root: run this as root, or set KUBECONFIG.",
) -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UsageError(message)


def _build(programs: Sequence[str]) -> int:
    if programs:
        build.ensure_programs(programs)
    else:
        build.ensure()
    print(build.binaries())
    return 0


def _engine() -> int:
    if engine.answers() and engine.has_base_image():
        return 0  # the user's own engine, which needs no root
    _need_root(
        f"no Docker engine responds that has {engine.BASE_IMAGE} or can pull it: "
        "start your engine, or run this as root on Linux to start one."
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
        FIRST.load(image)
    return 0


def _add_node(images: Sequence[str]) -> int:
    _need_root()
    kubernetes.start_second_node(images)
    return 0


def _status() -> int:
    _need_root()
    running = kubernetes.state()
    for name, runs in running.items():
        print(f"  {name:<32} {'running' if runs else 'not running'}")
    print(f"  {'Docker engine':<32} {'running' if engine.answers() else 'not running'}")
    if not all(running.values()):
        print("`up` starts what is not running" if any(running.values()) else "no cluster is running; `up` starts one")
        return 1
    ready = kubernetes.node_is_ready()
    print(f"  {FIRST.name:<32} {'ready' if ready else 'not ready'}")
    print(f"export KUBECONFIG={KUBECONFIG}")
    return 0 if ready else 1


def _down() -> int:
    _need_root()
    with step("stop"):
        SANDBOX.stop()
        engine.stop()
        shutil.rmtree(STATE, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
