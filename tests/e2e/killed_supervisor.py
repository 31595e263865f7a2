"""Runs `trainer supervise`, and kills it with SIGKILL after its Nth write to the cluster.

python -m tests.e2e.killed_supervisor N --run FILE
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from lightkube import Client

from trainer import cli


def main() -> int:
    """Run the supervisor with a Kubernetes client that counts writes."""
    last, *words = sys.argv[1:]
    count = itertools.count(1)

    def counted(write: Callable[..., Any]) -> Callable[..., Any]:
        def write_and_count(*arguments: Any, **named: Any) -> Any:
            done = write(*arguments, **named)
            if next(count) == int(last):
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return write_and_count

    for verb in ("patch", "create"):
        setattr(Client, verb, counted(getattr(Client, verb)))
    return cli.main(["supervise", *words])


if __name__ == "__main__":
    sys.exit(main())
