"""The `trainer` command, also as `python -m trainer`. Ctrl-C ends it without a traceback, also while it imports."""

import signal
import sys


def main() -> int:
    """Run the command; return its exit code."""
    try:
        from trainer import cli

        return cli.main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
