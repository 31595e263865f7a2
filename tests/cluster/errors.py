"""The two ways this tool fails, each told in one sentence by `tests.cluster.__main__`; raised anywhere in the tool."""


class UsageError(Exception):
    """The tool was called wrongly, or on a machine it cannot work on: exit code 2."""


class ClusterError(Exception):
    """Something did not build, start or answer: exit code 1. A log's last lines may follow."""
