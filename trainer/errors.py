"""Errors that end a task, and their exit codes (docs/trainer.md has the table).

Any module raises them. `trainer.cli` prints the message to stderr as one sentence and exits with the code;
`trainer.training.watch.watchdog` does so for a stall.
"""

EXIT_ERROR = 1
"""An error in the model's code, or a bug, whose traceback is on stderr."""
EXIT_CONFIGURATION = 2
EXIT_FAILED_RUN = 3
"""Exit code of the supervisor when its run has failed. Its Job fails only on this code and on 2."""
EXIT_DIVERGED = 4
EXIT_SUPERSEDED = 5
"""A chief found that another one writes its training directory. Permanent: a retry would stop that one."""
EXIT_LOST_PEERS = 138
"""With restart policy ExitCode, codes from 128 are retryable; 138 is the one reserved for user programs."""
AGAIN = "TASK_AGAIN"
"""The environment variable with the file by which a task asks to be started again. Such a start is no restart that
counts."""


class ConfigurationError(Exception):
    """The user's configuration is wrong: one sentence naming the setting, the value and what was expected."""


class AbsentError(ConfigurationError):
    """What is named does not exist: one sentence. It may exist later, as the model of a run that goes on."""


class RollBackError(Exception):
    """The run diverges and must continue from its best checkpoint. `trainer.training.train` always catches it."""

    def __init__(self, sentence: str, step: int) -> None:
        super().__init__(sentence)
        self.step = step


class DivergedError(Exception):
    """The run diverges and must end. A retry with the same settings does not help."""


class CollectiveLostError(Exception):
    """The collective group lost a replica, so none can continue. This process must restart to rejoin the group."""


class LostPeersError(Exception):
    """Other tasks did not respond before the timeout. This task has no fault, so a retry may succeed."""


class StoreError(Exception):
    """An object store, a volume or MLflow failed, also when tried again: one sentence. A retry may succeed."""


class SupersededError(Exception):
    """Another chief has taken over the training directory: one sentence. This one must stop without writing."""


class ModelError(Exception):
    """The model's code failed in a step: one sentence with the error and its location. A retry does not help."""
