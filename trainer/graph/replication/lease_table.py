"""The leases of a run that are not done, in variables of the first parameter server (`trainer.data.leases`).

Each op runs while no other one does. A task may be lost in the midst of one: the writes are in such an order that a
lease is then dealt twice, and never lost.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.leases import BEGIN, NOBODY, OWNER, SLOT, STEP, STEPS, UNKNOWN, Claimed, LeaseTable, OwnLeases
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Session, Tensor, Variable

LEASES = 4
"""Those that a replica may hold, at most."""
UNLIMITED = 2**62


@dataclass(frozen=True)
class SharedLeases:
    """The ops of one replica."""

    variables: list[Variable]
    done: Tensor
    """int64 scalar placeholder: how many parts this replica has taken, of those that it has claimed."""
    step: Tensor
    """int64 scalar placeholder: the global step at which that was, or UNKNOWN."""
    report: Operation
    """Reports these."""
    join: Operation
    """Gives the leases back that an earlier process of this replica had."""
    leave: Operation
    """Gives the leases of this replica back, with `done`."""
    _steps: tuple[int, int]
    _begin: Tensor
    _wanted: Tensor
    _claimed: Tensor
    _other: Tensor
    _give_back: Operation
    _next: Tensor
    _limit: Tensor
    _initial: Tensor
    _reset: Operation
    _set_limit: Operation
    _read: list[Tensor]

    @classmethod
    def create(
        cls,
        replicas: int,
        index: int,
        device: str,
        slots: int,
        steps: tuple[int, int],
        is_shared: bool = False,
        spare: int = 0,
        open_course: Callable[[Tensor], Operation] | None = None,
    ) -> "SharedLeases":
        """Add the ops to the default graph.

        Args:
            replicas: Those that the cluster lists.
            index: That of this one.
            device: The first parameter server.
            slots: The parts of a step.
            steps: Those of the first lease of a replica, and of its largest.
            is_shared: Whether the replicas wait for each other.
            spare: The leases that a run may begin with.
            open_course: Adds the op that lets the run go on after its last step if something is given back, as what its
                replica has taken but not reported is taken once more; None if there is no last step.
        """
        with tf1.device(device):
            empty = np.zeros([LEASES * replicas + slots + spare, 5], np.int64)
            empty[:, OWNER] = NOBODY
            no_reports = np.tile(np.array([0, UNKNOWN], np.int64), [replicas, 1])
            rows = _variable(f"leases_of_{replicas}", empty)
            reports = _variable(f"lease_reports_of_{replicas}", no_reports)
            dealt = _variable("leases_next", np.zeros(2, np.int64))  # the first step that was not dealt, and the limit
            done = tf1.placeholder_with_default(tf.constant(0, tf.int64), [], "done")
            step = tf1.placeholder_with_default(tf.constant(UNKNOWN, tf.int64), [], "since")
            begin = tf1.placeholder(tf.int64, [], "begin")
            wanted = tf1.placeholder(tf.int64, [], "steps")
            other = tf1.placeholder(tf.int64, [], "other")
            first, limit = tf1.placeholder(tf.int64, [], "first"), tf1.placeholder(tf.int64, [], "limit")
            initial = tf1.placeholder_with_default(empty, empty.shape, "leases")

            def alone(function: Callable[[], Tensor]) -> Tensor:
                return tf.CriticalSection(shared_name="leases").execute(function)

            def give_back(replica: Tensor | int, taken: Tensor | None = None, is_new: bool = False) -> Tensor:
                """Let another replica have what this one has not taken, so far as is known. A new one has none."""
                found, reported = rows.read_value(), reports.read_value()
                taken = reported[replica, 0] if taken is None else taken
                own = tf.equal(found[:, OWNER], replica)
                count = tf.where(own, tf.clip_by_value(taken - found[:, BEGIN], 0, found[:, STEPS]), 0)
                owner = tf.where(own, tf.constant(NOBODY, tf.int64), found[:, OWNER])
                left = found[:, STEPS] - count
                columns = [found[:, STEP] + count, left, found[:, SLOT], found[:, BEGIN], owner]
                opened = [open_course(tf.reduce_any(own & (left > 0)))] if open_course else []
                with tf.control_dependencies(opened):
                    given = rows.assign(tf.stack(columns, axis=1), read_value=False)
                with tf.control_dependencies([given]):
                    row = tf.constant(no_reports[0]) if is_new else tf.stack([taken, tf.constant(UNKNOWN, tf.int64)])
                    set_row = tf.raw_ops.ResourceScatterUpdate(resource=reports.handle, indices=replica, updates=row)
                    with tf.control_dependencies([set_row]):
                        return tf.constant(0)

            def claim() -> Tensor:
                return _claim(rows, dealt, index, (done, begin), slots, wanted, 0 if is_shared else replicas)

            report = tf.raw_ops.ResourceScatterUpdate(
                resource=reports.handle, indices=tf.constant(index), updates=tf.stack([done, step])
            )
            set_all = [
                rows.assign(initial, read_value=False),
                reports.assign(no_reports, read_value=False),
                dealt.assign(tf.stack([first, limit]), read_value=False),
            ]
            return cls(
                [rows, reports, dealt],
                done,
                step,
                report,
                tf.group(alone(lambda: give_back(index, is_new=True))),
                tf.group(alone(lambda: give_back(index, done))),
                steps,
                begin,
                wanted,
                alone(claim),
                other,
                tf.group(alone(lambda: give_back(other))),
                first,
                limit,
                initial,
                tf.group(*set_all),
                tf.group(dealt.assign(tf.stack([dealt.read_value()[0], limit]), read_value=False)),
                alone(lambda: [dealt.read_value(), rows.read_value(), reports.read_value()]),
            )

    def own(self, session: Session) -> OwnLeases:
        """The leases that this replica takes in a session."""
        claim = session.make_callable(self._claimed, [self.done, self._begin, self._wanted])

        def claim_one(done: int, begin: int, wanted: int) -> Claimed:
            step, steps, slot, is_over = claim(done, begin, wanted).tolist()
            return Claimed(step, steps, slot, bool(is_over))

        return OwnLeases(claim_one, self._steps)

    def give_back(self, session: Session, replica: int) -> None:
        """Let others have the leases of a replica that is lost. The chief does this."""
        session.run(self._give_back, {self._other: replica})

    def reset(self, session: Session, step: int, limit: int) -> None:
        """Deal the steps from this one on, below the limit. The chief does this before the others begin."""
        session.run(self._reset, {self._next: step, self._limit: limit})

    def reset_files(self, session: Session, not_done: npt.NDArray[np.int64], limit: int) -> None:
        """Deal the files that are not done, of `LeaseTable.of_files`, and those after them, below the limit."""
        following, leases = int(not_done[0]), not_done[1:].reshape(-1, 2)
        rows = np.zeros(self._initial.shape, np.int64)
        rows[:, OWNER] = NOBODY
        if len(leases) > len(rows) // 2:  # of many more replicas than there are now
            following, leases = int(leases[:, 0].min()), leases[:0]
        rows[: len(leases), [STEP, STEPS]] = leases
        session.run(self._reset, {self._initial: rows, self._next: following, self._limit: limit})

    def set_limit(self, session: Session, limit: int) -> None:
        """Set the limit."""
        session.run(self._set_limit, {self._limit: limit})

    def read(self, session: Session) -> LeaseTable:
        """The leases that are not done."""
        dealt, rows, reports = session.run(self._read)
        return LeaseTable(int(dealt[0]), rows, reports)


def _variable(name: str, initial: object) -> Variable:
    return tf1.get_variable(name, initializer=initial, dtype=tf.int64, trainable=False, use_resource=True)


def _claim(
    table: Variable, dealt: Variable, index: int, taken: tuple[Tensor, Tensor], slots: int, most: Tensor, sharers: int
) -> Tensor:
    """Free the leases that are done, and claim one: int64 [4], the fields of `Claimed`.

    The first one that nobody has is claimed, for the replica with this index: of a block, that of its own slot if it
    can. `taken` is how many parts this has done, and how many it has claimed. If there is none, a block of `most` steps
    begins, or of the steps that are left. With `sharers`, these are dealt in ever smaller blocks, so that all end at
    the same time (Polychronopoulos and Kuck, "Guided Self-Scheduling", 1987).
    """
    found, (following, limit) = table.read_value(), tf.unstack(dealt.read_value())
    nobody = tf.constant(NOBODY, tf.int64)
    first, steps, slot, begin, owner = tf.unstack(found, axis=1)
    own, (done, begins) = tf.equal(owner, index), taken
    steps = tf.where(own & (begin + steps <= done), tf.zeros_like(steps), steps)
    owner = tf.where(steps > 0, owner, nobody)
    size = tf.minimum(most, limit - following)
    if sharers:
        size = tf.minimum(size, tf.maximum(tf.constant(1, tf.int64), (limit - following) // (2 * sharers)))
    may_claim = tf.reduce_sum(tf.cast(own & (steps > 0), tf.int64)) < LEASES
    is_new = ~tf.reduce_any((owner < 0) & (steps > 0)) & (size > 0) & may_claim
    free = tf.equal(steps, 0)
    place = tf.cumsum(tf.cast(free, tf.int64)) - 1
    opened = is_new & free & (place < slots)
    first, steps = tf.where(opened, following, first), tf.where(opened, size, steps)
    slot = tf.where(opened, place, slot)

    offered = (owner < 0) & (steps > 0) & may_claim
    rank = slot + tf.where(tf.equal(slot, index), tf.constant(0, tf.int64), tf.constant(slots, tf.int64))
    chosen = tf.argmin(tf.where(offered, first * 2 * slots + rank, tf.int64.max))
    is_chosen = tf.equal(tf.range(found.shape[0], dtype=tf.int64), chosen) & offered
    owner, begin = tf.where(is_chosen, tf.constant(index, tf.int64), owner), tf.where(is_chosen, begins, begin)
    rows = tf.stack([first, steps, slot, begin, owner], axis=1)
    is_over = tf.cast(~tf.reduce_any(steps > 0), tf.int64)
    with tf.control_dependencies([table.assign(rows, read_value=False)]):
        after = following + tf.where(is_new, size, 0)
        with tf.control_dependencies([dealt.assign(tf.stack([after, limit]), read_value=False)]):
            row = tf.where(tf.reduce_any(offered), rows[chosen], tf.zeros([5], tf.int64))
            return tf.stack([row[STEP], row[STEPS], row[SLOT], is_over])
