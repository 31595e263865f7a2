"""The ways a task ends otherwise than well, and the exit code of each (the table is in docs/trainer.md).

Raised anywhere, turned into one sentence on stderr and an exit code by `trainer.cli` (a stall: by `training.guard`).
"""

EXIT_ERROR = 1
"""Of the model's own code, and of a bug, whose traceback is on stderr."""
EXIT_CONFIGURATION = 2
EXIT_FAILED_RUN = 3
"""Of the supervisor: the run that it supervised has failed. Its Job fails by this code and 2 alone."""
EXIT_DIVERGED = 4
EXIT_LOST_PEERS = 138
"""128 and above means "try again" to an ExitCode restart policy; 138 is the value it leaves to programs' own use."""


class ConfigurationError(Exception):
    """The user's configuration is wrong: one sentence naming the setting, the value and what was expected."""


class RollBackError(Exception):
    """The run diverges, and is to go on from its best checkpoint; never leaves `trainer.training.train`."""

    def __init__(self, sentence: str, step: int) -> None:
        super().__init__(sentence)
        self.step = step


class DivergedError(Exception):
    """The run diverges, and is to end for it: trying again with the same settings would not help."""


class CollectiveLostError(Exception):
    """A replica was lost without which no other goes on: this process must begin anew, to meet all of them again."""


class LostPeersError(Exception):
    """Other tasks did not answer in the time allowed: nothing is wrong here, so the task may be tried again."""


class ModelError(Exception):
    """The model's own code failed in a step: one sentence with its error and its place. Trying again does not help."""
