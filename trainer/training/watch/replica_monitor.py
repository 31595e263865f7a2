"""The chief's view of the replicas that take part in a run with parameter servers, in a thread beside its steps.

Workers may come and go. A replica takes part from its first contribution on, until it leaves after SIGTERM, or nothing
answers at its address, or it is later than `straggler_seconds`. Its next contribution lets it take part again. In
synchronous training, a round needs the contributions of those that take part, at most `replicas_to_aggregate`. One that
waits for more is ended, and one for which none of them counts yet is taken again. `Roster` decides without side
effects; `ReplicaMonitor` uses the variables of the parameter servers, and probes addresses.
"""

import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from trainer.cluster import peers
from trainer.config import Settings
from trainer.graph.replica import Replica
from trainer.graph.replication import Rounds
from trainer.graph.replication.membership import ABSENT, PAUSED, Membership
from trainer.telemetry import report
from trainer.tensorflow import tf
from trainer.tensorflow_types import Session
from trainer.training.callback import Callback

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
ROUNDS_AHEAD = 2
"""The rounds that may have begun, or are about to, with the contributions that were needed before."""
QUIET_SECONDS = 1.0
"""The address of a replica that has not contributed for this long is probed, at most this often."""
MAX_PROBES = 32
"""Addresses that are probed at a time."""
REJOIN_SECONDS = 30.0
"""How long the rounds of a run that has already begun wait for listed replicas that have not contributed yet."""
LATE_SECONDS = 10.0
"""After this time without a step the chief names the replicas that are late, and again after twice the time."""
FIRST_GAP_SECONDS, LAST_GAP_SECONDS = 2.0, 600.0
"""The shortest time between two reports about one replica, after the first one and at most."""
NAMES = 3
"""At most this many replicas are named in one sentence."""


@dataclass
class Roster:
    """Decides which replicas take part. Index 0 is the chief itself."""

    replicas: int
    """Listed replicas."""
    awaited: set[int] = field(default_factory=set)
    """Replicas that a synchronous run waits for although they have not contributed yet."""
    passed_over: dict[int, int] = field(default_factory=dict)
    """Replicas that do not take part until their next contribution, with the step of the last one."""
    step: int = -1
    """The global step."""
    last_steps: Sequence[int] = ()
    """As in `Membership.last_steps`."""
    stepped: float = 0.0
    """When the global step last changed."""
    contributed: list[float] = field(default_factory=list)
    """When each replica's last contribution was seen."""

    def observe(self, step: int, last_steps: Sequence[int], now: float) -> None:
        """Take note of what the parameter servers have."""
        if not self.last_steps:
            self.stepped, self.contributed = now, [now] * self.replicas
        elif step != self.step:
            self.stepped = now
        before = self.last_steps or [ABSENT] * self.replicas
        for index, (last, previous) in enumerate(zip(last_steps, before, strict=True)):
            if last != previous:
                self.contributed[index] = now
            if last != ABSENT:
                self.awaited.discard(index)
            if self.passed_over.get(index, last) != last:
                del self.passed_over[index]
        self.step, self.last_steps = step, list(last_steps)

    @property
    def present(self) -> list[int]:
        """The replicas that take part."""
        return [index for index, last in enumerate(self.last_steps) if last > PAUSED and index not in self.passed_over]

    @property
    def paused(self) -> list[int]:
        """Those that wait for a lease."""
        return [index for index, last in enumerate(self.last_steps) if last == PAUSED]

    @property
    def expected(self) -> int:
        """The contributions that a round needs, without the limit of `replicas_to_aggregate`."""
        return max(1, len({*self.present, *self.awaited}))

    @property
    def late(self) -> list[int]:
        """The replicas that have not contributed to the present round of synchronous training."""
        return sorted({index for index in self.present if self.last_steps[index] < self.step} | self.awaited)

    @property
    def suspects(self) -> list[int]:
        """The replicas for which the round may wait: if none is late, one may have reached some of the shards only."""
        return self.late or self.present

    def quiet(self, now: float) -> list[int]:
        """Other replicas that take part and have not contributed for a while, the longest first.

        One that is awaited is not among them: nothing answers at its address until its program has started.
        """
        those = set(self.present) - {0}
        found = [index for index in those if now - self.contributed[index] >= QUIET_SECONDS]
        return sorted(found, key=lambda index: self.contributed[index])

    def pass_over(self, indices: Sequence[int]) -> None:
        """These replicas do not take part until their next contribution."""
        self.awaited -= set(indices)
        self.passed_over |= {index: self.last_steps[index] for index in indices}


@dataclass
class Reports:
    """Which changes to report now: of a replica that comes and goes again and again, fewer and fewer."""

    reported: set[int] = field(default_factory=set)
    """The replicas that take part, as reported."""
    gaps: dict[int, float] = field(default_factory=dict)
    """Seconds to the next report about a replica."""
    due_at: dict[int, float] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)
    """Of those whose change is not reported yet: the global step at which it was seen."""

    def due(self, present: Set[int], step: int, now: float) -> tuple[dict[int, int], dict[int, int]]:
        """The replicas that have joined, and those that have left, since the last report about each, with the steps."""
        self.since = {index: self.since.get(index, step) for index in sorted(present ^ self.reported)}
        changed = {index for index in self.since if now >= self.due_at.get(index, 0.0)}
        for index in changed:
            gap = self.gaps.get(index, FIRST_GAP_SECONDS)
            if now - self.due_at.get(index, now) > LAST_GAP_SECONDS:
                gap = FIRST_GAP_SECONDS
            self.due_at[index], self.gaps[index] = now + gap, min(2 * gap, LAST_GAP_SECONDS)
        self.reported ^= changed
        news = {index: self.since.pop(index) for index in sorted(changed)}
        joined = {index: step for index, step in news.items() if index in self.reported}
        return joined, {index: step for index, step in news.items() if index not in joined}


class ReplicaMonitor:
    """Follows the replicas during a session. A context manager."""

    def __init__(
        self,
        session: Session,
        replica: Replica,
        membership: Membership,
        addresses: Mapping[str, str],
        settings: Settings,
        callback: Callback,
    ) -> None:
        """Prepare the monitor.

        Args:
            session: The chief's session.
            replica: The chief's replica.
            membership: Which replicas take part.
            addresses: "HOST:PORT" of all listed replicas by name. The first one is the chief.
            settings: The settings of the run.
            callback: That of the chief, for which the rounds wait while it evaluates an epoch.
        """
        self._session, self._rounds, self._settings = session, replica.replication.rounds, settings
        self._read_stop, self._stop = session.make_callable(replica.course.stop_now), 0
        self._leases, self._open_course = replica.leases, replica.open_course
        self._took_part: set[int] = set()
        """The replicas that have taken part, and whose leases are not given back."""
        self._owners_asked = time.monotonic()
        self._callback = callback
        self._names, self._addresses = list(addresses), list(addresses.values())
        self._mode = replica.mode
        rounds, last_steps = self._rounds, membership.last_steps
        fetches = [rounds.begun, last_steps, rounds.given] if rounds else [replica.global_step, last_steps]
        self._read = session.make_callable(fetches)
        self._roster = Roster(len(addresses))
        self._wanted = self._mode.contributions
        self._counted: list[bool] | None = None
        """Whether each replica is among those for which rounds wait."""
        self._join_seconds = settings.wait_seconds
        self._reports = Reports()
        self._reasons: dict[int, str] = {}
        self._unanswered: set[int] = set()
        self._late_after = LATE_SECONDS
        self._probed = 0.0
        self._probe: tuple[list[int], Future[list[str | None]]] | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="probes")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="replica-monitor", daemon=True)

    def __enter__(self) -> "ReplicaMonitor":
        step, last_steps, *_ = self._read()
        self._roster.observe(int(step), list(map(int, last_steps)), time.monotonic())
        if self._rounds:
            self._await(int(step))
            self._want(self._rounds)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.join(0.2)  # a parameter server may not respond; closing the session then ends the thread

    def stop(self, step: int) -> int:
        """The global step at which the run ends, at the latest, as is known at this one."""
        if step >= self._stop:
            self._stop = int(self._read_stop())
        return self._stop

    def _await(self, step: int) -> None:
        """Wait for the listed replicas whose host name resolves: the pod of any other one does not exist."""
        first = self._roster.last_steps[: self._mode.beginners]
        absent = [index for index, last in enumerate(first) if index and last == ABSENT]
        with ThreadPoolExecutor(max_workers=32) as pool:
            there = list(pool.map(_resolves, [self._addresses[index] for index in absent]))
        self._roster.awaited = {index for index, found in zip(absent, there, strict=True) if found} | {0}
        straggler = self._settings.straggler_seconds
        if step > 0 or straggler is not None:
            self._join_seconds = min(self._join_seconds, max(REJOIN_SECONDS, straggler or 0))

    def _watch(self) -> None:
        try:
            while not self._over.wait(POLL_SECONDS):
                self._take_pass(time.monotonic())
        except (tf.errors.OpError, RuntimeError) as error:  # the main thread has it too, in its session, and handles it
            logger.debug(f"the replica monitor ends: {error}")
        except Exception:
            logger.exception("the replica monitor has failed, so rounds may wait for replicas that are gone")

    def _take_pass(self, now: float) -> None:
        roster, before = self._roster, self._roster.step
        step, last_steps, *given = self._read()
        if step >= self.stop(int(step)):  # the others end now
            return
        roster.observe(int(step), list(map(int, last_steps)), now)
        if self._callback.is_evaluating_epoch:  # the others wait for that
            roster.stepped, roster.contributed = now, [now] * roster.replicas
        self._find_gone(now)
        self._give_back(now)
        if self._rounds:
            self._follow_rounds(
                self._rounds, [int(count) for count in given[0]], roster.step == before, now - roster.stepped
            )
        self._report(now)

    def _follow_rounds(self, rounds: Rounds, given: Sequence[int], is_waiting: bool, stalled: float) -> None:
        """Let the rounds need those that take part, and end a round that waits for more."""
        roster, limit = self._roster, self._settings.straggler_seconds
        absent = sorted(roster.awaited - {0})
        if absent and stalled >= self._join_seconds:
            logger.info(f"step {roster.step} goes on without {self._list(absent)}: it has not joined the run yet")
            roster.pass_over(absent)
        late = [index for index in roster.late if index not in roster.awaited]
        has_waited = limit is not None and stalled >= limit
        if late and has_waited and (min(given) > 0 or {*roster.present} - {*late}):
            self._pass_over(late, f"its gradient is later than straggler_seconds, {limit:g} s")
            self._give_back(roster.stepped + stalled)
        elif stalled >= self._late_after and roster.late:
            self._late_after = 2 * stalled
            logger.info(f"step {roster.step} has waited {stalled:.0f} s for {self._list(roster.late)}")
        # If nobody is late, a gradient has reached some of the shards only: the round of the others needs one less.
        self._want(rounds, max(given) if has_waited and not roster.late else 0)
        if is_waiting and roster.present and not roster.late:
            self._end_round(rounds)

    def _end_round(self, rounds: Rounds) -> None:
        """Let the present round end: it waits, although all that take part have contributed."""
        roster = self._roster
        begun, given, needed = self._session.run([rounds.begun, rounds.given, rounds.needed])
        if begun != roster.step:
            return
        if not needed:  # they have joined, and none of them counts yet
            first = [index == roster.present[0] for index in range(roster.replicas)]
            self._session.run(rounds.want, {rounds.wanted: self._wanted, rounds.counted: first})
            others = {rounds.wanted: self._wanted, rounds.counted: self._counted, rounds.delay: 1}
            self._session.run(rounds.want, others)
            self._session.run(rounds.again, {rounds.step: begun})
        elif max(given) >= needed:  # it began with more that counted
            for _ in range(roster.replicas - min(given)):
                self._session.run(rounds.complete, {rounds.step: begun})

    def _want(self, rounds: Rounds, at_most: int = 0) -> None:
        """Let a round need a contribution of each replica that takes part; with a limit, not more than that."""
        wanted = min(self._mode.contributions, self._roster.expected)
        wanted = min(wanted, at_most or wanted)
        counted = [index in {*self._roster.present, *self._roster.awaited} for index in range(self._roster.replicas)]
        if wanted != self._wanted or counted != self._counted:
            if self._open_course and wanted < self._mode.batches // self._mode.devices:
                self._session.run(self._open_course)  # as the steps have fewer examples now
            delay = 0 if self._counted is None else ROUNDS_AHEAD
            self._session.run(rounds.want, {rounds.wanted: wanted, rounds.counted: counted, rounds.delay: delay})
            self._wanted, self._counted = wanted, counted

    def _give_back(self, now: float) -> None:
        """Let others have the leases of replicas that do not take part any more, or have stalled."""
        if not self._leases:
            return
        waited = {each for each in self._roster.paused if now - self._roster.contributed[each] <= REJOIN_SECONDS}
        present = {*self._roster.present, *waited}
        if not self._rounds:
            stall = self._settings.stall_seconds
            present -= {index for index in present if now - self._roster.contributed[index] > stall}
        lost = {*self._took_part - present, *self._absent_owners(present, now)}
        for index in sorted(lost):
            self._leases.give_back(self._session, index)
        self._took_part = present

    def _absent_owners(self, present: Set[int], now: float) -> list[int]:
        """Now and then: who has leases and does not answer, although it has not taken part since this session began."""
        if not self._leases or now - self._owners_asked < REJOIN_SECONDS:
            return []
        self._owners_asked = now
        absent = [index for index in self._leases.read(self._session).owners if index not in present]
        errors = peers.probe_errors([self._addresses[index] for index in absent])
        return [index for index, error in zip(absent, errors, strict=True) if error]

    def _find_gone(self, now: float) -> None:
        """Probe replicas that have not contributed for a while. Those at whose address nothing answers are gone."""
        if self._probe and self._probe[1].done():
            (indices, errors), self._probe, self._probed = (self._probe[0], self._probe[1].result()), None, now
            quiet = set(self._to_probe(now))
            for index, error in zip(indices, errors, strict=True):
                persists = error == peers.REFUSED or index in self._unanswered
                self._unanswered.discard(index)
                if error and index in quiet and persists:
                    self._pass_over([index], f"it is gone: {error}")
                elif error:
                    self._unanswered.add(index)
        if self._probe is None and now - self._probed >= QUIET_SECONDS and (quiet_ones := self._to_probe(now)):
            addresses = [self._addresses[index] for index in quiet_ones]
            self._probe = quiet_ones, self._pool.submit(peers.probe_errors, addresses)

    def _to_probe(self, now: float) -> list[int]:
        quiet = self._roster.quiet(now)
        if self._rounds:  # those that have contributed to the round wait for others
            suspects = set(self._roster.suspects)
            quiet = [index for index in quiet if index in suspects]
        return quiet[:MAX_PROBES]

    def _pass_over(self, indices: Sequence[int], why: str) -> None:
        self._reasons |= dict.fromkeys(indices, why)
        self._roster.pass_over(indices)

    def _report(self, now: float) -> None:
        """Report who has joined and who has left."""
        present = set(self._roster.present)
        joined, left = self._reports.due(present, self._roster.step, now)
        count = f"{len(present)} replica{'' if len(present) == 1 else 's'}"
        for index, step in left.items():
            why = self._reasons.pop(index, "it has left")
            sentence = f"step {step} goes on without {self._names[index]}, as {why}: {count}"
            report.log(logger, sentence, replicas=sentence)
        if joined:
            verb = "takes" if len(joined) == 1 else "take"
            sentence = f"{self._list([*joined])} {verb} part from step {min(joined.values())} on: {count}"
            report.log(logger, sentence, replicas=sentence)

    def _list(self, indices: Sequence[int]) -> str:
        names = [self._names[index] for index in indices]
        more = f" (and {len(names) - NAMES} more)" if len(names) > NAMES else ""
        return ", ".join(names[:NAMES]) + more


def _resolves(address: str) -> bool:
    host, _, _ = address.rpartition(":")
    try:
        socket.getaddrinfo(host.strip("[]"), None)
        return True
    except (OSError, UnicodeError):
        return False
