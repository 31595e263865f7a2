"""`trainer supervise` that kills itself with SIGKILL right after its Nth write to the cluster.

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
    """Run the supervisor with patched writes."""
    last, *words = sys.argv[1:]
    count = itertools.count(1)

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def write_and_maybe_die(*arguments: Any, **named: Any) -> Any:
            done = write(*arguments, **named)
            if next(count) == int(last):
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return write_and_maybe_die

    for verb in ("patch", "create"):
        setattr(Client, verb, dying(getattr(Client, verb)))
    return cli.main(["supervise", *words])


if __name__ == "__main__":
    sys.exit(main())
