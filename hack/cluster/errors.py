"""The two errors of this tool. Any module raises them; `hack.cluster.__main__` prints them as one sentence."""


class UsageError(Exception):
    """Wrong arguments, or a machine that the tool does not support: exit code 2."""


class ClusterError(Exception):
    """Something does not build, start or respond: exit code 1. The message may end with the end of a log."""
