"""Which changes of the cluster were requested: each is requested once, and again if it is not observed in time."""

PATIENCE_SECONDS = 5.0


class Sent:
    """The last change that was requested of each thing."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[object, float]] = {}

    def is_due(self, what: str, now: float, change: object = None) -> bool:
        """Whether to request a change, which then counts as requested.

        Args:
            what: What is changed, such as the name of a role.
            now: Seconds since 1970.
            change: The change, if there are several of this thing: one does not wait for another.
        """
        before, at = self._sent.get(what, (None, 0.0))
        if before == change and now - at < PATIENCE_SECONDS:
            return False
        self._sent[what] = (change, now)
        return True
