"""The epochs of a run, which other numbers of learners may continue."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.data.epochs import START, Epochs, Position
from trainer.data.orders import Deal, order

EPOCHS = 3


def test_epochs_count_their_last_step_whole() -> None:
    epochs = Epochs(50, 8)
    assert epochs.steps == 7
    found = [epochs.at(step) for step in (0, 6, 7, 15)]
    assert found == [START, Position(6, 0, 48), Position(7, 1, 0), Position(15, 2, 8)]
    assert [epochs.end(step) for step in (0, 6, 7)] == [7, 7, 14]
    assert [epochs.last_step(3), epochs.last_step(3, 4)] == [21, 24]


def test_steps_of_another_size_take_what_is_left_of_the_epoch() -> None:
    epochs = Epochs(50, 20).continued(Epochs(50, 8), 9)
    assert epochs.begun == Position(9, 1, 16)
    assert [epochs.end(9), epochs.end(10), epochs.end(11)] == [11, 11, 14]
    assert epochs.last_step(3) == 14
    assert Epochs(50, 8).continued(Epochs(50, 8), 9) == Epochs(50, 8)


def test_an_epoch_of_another_length_or_unit_goes_on_at_the_same_share() -> None:
    in_steps = Epochs(16, 1).continued(Epochs(256, 8), 80)  # 2.5 epochs of 32 steps
    assert (in_steps.begun, in_steps.last_step(10)) == (Position(80, 2, 8), 80 + 8 + 7 * 16)
    in_batches = Epochs(50, 1).continued(Epochs(100, 1), 150)
    assert (in_batches.begun, in_batches.last_step(10)) == (Position(150, 1, 25), 150 + 25 + 8 * 50)


def test_a_run_that_has_taken_all_its_epochs_has_no_more_steps() -> None:
    assert Epochs(50, 20).continued(Epochs(50, 8), 21).last_step(3) == 21


@given(
    count=st.integers(1, 80),
    size=st.integers(1, 9),
    processes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=5),
)
def test_an_epoch_has_each_example_once_whoever_takes_it(
    count: int, size: int, processes: list[tuple[int, int]]
) -> None:
    seen: dict[int, list[int]] = {}
    step, epochs, again = 0, Epochs(count, size * processes[0][0]), 0
    for batches, most in [*processes, (processes[-1][0], 10**6)]:  # the last process ends the run
        epochs = Epochs(count, size * batches).continued(epochs, step)
        deal = Deal(count, size, batches, seed=0, begun=epochs.begun)
        again = max(again, deal.is_even * (epochs.per_step - 1))  # of full batches, the end of an epoch
        for _ in range(step, min(step + most, epochs.last_step(EPOCHS))):
            for learner in range(batches):
                indices, own = deal.take(step, learner)
                seen.setdefault(epochs.at(step).epoch, []).extend(indices[:own].tolist())
            step += 1
    assert sorted(seen) == list(range(EPOCHS))
    for taken in seen.values():
        assert {*taken} == {*range(count)}
        assert count <= len(taken) <= count + again


def test_the_end_of_an_epoch_of_full_batches_takes_some_examples_twice() -> None:
    deal = Deal(12, 2, batches=3, seed=0, begun=Position(1, 0, 2))
    taken = [deal.take(step, learner) for step in (1, 2) for learner in range(3)]
    assert [count for _, count in taken] == [2] * 6
    again = order(12, 0, 0)[:2].tolist()
    assert taken[-1][0].tolist() == again
    assert len({each for indices, _ in taken for each in indices.tolist()}) == 12
