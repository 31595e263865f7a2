"""Logs what a replica waits for while it takes no step, and tells the watchdog, which repeats it if it ends the task.

The session of a blocked step does not tell which task it waits for, so a thread probes the addresses of all tasks that
this replica needs.
"""

import logging
import threading
import time
from collections.abc import Mapping

from trainer.cluster import peers
from trainer.training.watch.watchdog import Watchdog

logger = logging.getLogger(__name__)

FIRST_SECONDS = 10.0
"""The first message comes after this time without a step, or after three times the last step's if that is longer. The
time until each further message doubles."""
LAST_SECONDS = 5.0
"""The last message comes this long before the watchdog ends the task."""
INTERVAL_SECONDS = 0.5


def start(watchdog: Watchdog, needed: Mapping[str, str]) -> None:
    """Start the thread, which runs until the process ends.

    Args:
        watchdog: Knows how long this task has taken no step.
        needed: The addresses ("HOST:PORT") of the tasks that this replica needs, by name.
    """
    threading.Thread(target=_report, args=(watchdog, needed), name="stall-reporter", daemon=True).start()


def _report(watchdog: Watchdog, needed: Mapping[str, str]) -> None:
    last = watchdog.stall_seconds - LAST_SECONDS
    due = 0.0
    while True:
        time.sleep(INTERVAL_SECONDS)
        stalled = watchdog.stalled_for()
        first = min(max(FIRST_SECONDS, 3 * watchdog.last_interval), watchdog.stall_seconds / 2)
        if stalled < first:
            watchdog.waits_for, due = "", first
        elif stalled >= due:
            reason = describe(needed)
            if watchdog.stalled_for() < stalled:
                continue  # there was a step meanwhile
            watchdog.waits_for = f"{watchdog.operation}, {reason}"
            logger.warning(f"no step for {stalled:.0f} s: {watchdog.waits_for}")
            due = min(2 * stalled, last) if stalled < last else float("inf")


def describe(needed: Mapping[str, str]) -> str:
    """Return a sentence on which of these tasks do not respond."""
    errors = zip(needed.items(), peers.probe_errors(list(needed.values()), must_answer=True), strict=True)
    lost = [f"{name} at {address}: {error}" for (name, address), error in errors if error]
    if lost:
        others = f" (and {len(lost) - 1} more tasks)" if len(lost) > 1 else ""
        return f"waiting for {lost[0]}{others}"
    names = ", ".join(needed) if len(needed) <= 4 else f"all {len(needed)} tasks that it needs"
    return f"waiting for {names}: each answers, so a task computes, or waits for another one"
