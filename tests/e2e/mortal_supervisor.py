"""`trainer supervise` that dies, as by SIGKILL, right after its Nth write to the cluster.

python -m tests.e2e.mortal_supervisor N --run FILE
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
    """Be the supervisor, with its hands prepared."""
    last, *words = sys.argv[1:]
    count = itertools.count(1)

    def mortal(write: Callable[..., Any]) -> Callable[..., Any]:
        def write_and_perhaps_die(*arguments: Any, **named: Any) -> Any:
            done = write(*arguments, **named)
            if next(count) == int(last):
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return write_and_perhaps_die

    for verb in ("patch", "create"):
        setattr(Client, verb, mortal(getattr(Client, verb)))
    return cli.main(["supervise", *words])


if __name__ == "__main__":
    sys.exit(main())
