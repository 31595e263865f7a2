"""Clicks to predictions: `python -m benchmarks.online`.

A run trains on examples/models/online.py, whose events arrive in a folder, and publishes deltas; this process follows
it, as `trainer serve --follow` does. It prints

- the AUC of each day's events, predicted before the run has them: by the model that follows, by the same model as it
  was when the day began, and by that of a second run, whose tables are fixed and share rows by hashing;
- the seconds from a file of clicks on a new item to a changed prediction for that item;
- the times of predictions while deltas are applied, and while none is, in rounds.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from trainer.auc import auc
from trainer.errors import AbsentError
from trainer.serving.follower import POLL_SECONDS, Follower

MODELS = Path(__file__).parents[1] / "examples" / "models"
sys.path.insert(0, str(MODELS))

import growing  # noqa: E402

Array = npt.NDArray[Any]

FILE_EVENTS = 1000
PUBLISH_SECONDS = 2
PATIENCE = 180.0


@contextlib.contextmanager
def run(folder: Path, hashed: bool) -> Iterator[Path]:
    """A run that trains on the events of a folder; its training directory."""
    directory = folder.with_name(f"run-{'hashed' if hashed else 'growing'}")
    words = [sys.executable, "-m", "trainer", "launch", "--model", str(MODELS / "online.py"), "--ps=1", "--workers=1"]
    words += ["--train_steps=100000000", "--sync_replicas=false", f"--publish_seconds={PUBLISH_SECONDS}"]
    words += ["--steps_per_execution=1", f"--data_dir={folder}", f"--train_dir={directory}", "--eval_seconds=600"]
    environment = {**os.environ, "HASHED": "1" if hashed else "0"}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield directory
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def follow(directory: Path) -> Follower:
    """Follow a run, once it has published."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return Follower(directory, lambda sentence: print(sentence, file=sys.stderr))
        except AbsentError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


class Events:
    """The folder of a stream."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def add(self, inputs: Mapping[str, Array], clicked: Array) -> None:
        """Let events arrive."""
        partial, target = self._folder / "partial", self._folder / f"{self._count:08d}.npz"
        with partial.open("wb") as file:
            np.savez(file, user=inputs["user"], item=inputs["item"].astype(str), clicked=clicked.ravel())
        partial.rename(target)
        self._count += 1


def predict(follower: Follower, inputs: Mapping[str, Array]) -> Array:
    """The probabilities of clicks, [n]."""
    (found,) = follower.predict(inputs)[0].values()
    return found.ravel()


def days(events: Events, models: Mapping[str, Follower], count: int, seconds: float) -> None:
    """Print the AUC of each day. Its events come in files, with a pause between them."""
    print(f"| day | {' | '.join(models)} |\n| --- | {' | '.join('---' for _ in models)} |")
    found: dict[str, list[float]] = {name: [] for name in models}
    for day in range(count):
        models["once a day"].catch_up()
        inputs, clicked = growing.clicks(day, 0, growing.CLICKS_A_DAY)
        scores: dict[str, list[Array]] = {name: [] for name in models}
        files = range(0, growing.CLICKS_A_DAY, FILE_EVENTS)
        for start in files:
            begun, part = time.monotonic(), slice(start, start + FILE_EVENTS)
            own = {name: each[part] for name, each in inputs.items()}
            for name, follower in models.items():
                if name != "once a day":
                    follower.catch_up()
                scores[name].append(predict(follower, own))
            events.add(own, clicked[part])
            time.sleep(max(0.0, begun + seconds / len(files) - time.monotonic()))
        for name, each in scores.items():
            found[name].append(auc(clicked.ravel(), np.concatenate(each)))
        print(f"| {day} | {' | '.join(f'{each[-1]:.4f}' for each in found.values())} |", flush=True)
    late = {name: statistics.mean(each[count // 2 :]) for name, each in found.items()}
    print(f"| second half | {' | '.join(f'{each:.4f}' for each in late.values())} |", flush=True)


def seconds_to_prediction(events: Events, follower: Follower, times: int) -> Sequence[float]:
    """From a file of clicks on a new item to a changed prediction, [times]."""
    found = []
    for number in range(times):
        item = np.array([f"new-{number}"], object)
        asked = {"user": np.array([2**40]), "item": item}
        before = predict(follower, asked)[0]
        begun = time.monotonic()
        events.add({"user": np.full(100, 2**40), "item": item.repeat(100)}, np.ones(100, np.float32))
        while predict(follower, asked)[0] == before:
            if time.monotonic() > begun + PATIENCE:
                raise TimeoutError(f"the prediction for {item[0]} has not changed after {PATIENCE:g} s")
            time.sleep(POLL_SECONDS / 5)
            follower.catch_up()
        found.append(time.monotonic() - begun)
    return found


def latencies(follower: Follower, between: Callable[[], None], seconds: float) -> Sequence[float]:
    """The seconds of each prediction of 32 examples, one after the other, while `between` is called beside them."""
    inputs, _ = growing.clicks(0, 5, 32)
    ended, found = threading.Event(), []

    def change() -> None:
        while not ended.wait(POLL_SECONDS):
            between()

    thread = threading.Thread(target=change)
    thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        predict(follower, inputs)
        found.append(time.perf_counter() - begun)
    ended.set()
    thread.join()
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=12)
    parser.add_argument("--day_seconds", type=float, default=20.0)
    parser.add_argument("--times", type=int, default=5, help="of the seconds to a prediction (5)")
    parser.add_argument("--rounds", type=int, default=4, help="of the times of predictions (4)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "events")
        folder.mkdir()
        events = Events(folder)
        events.add(*growing.clicks(0, 1, FILE_EVENTS))  # a run begins with the first events
        with run(folder, hashed=False) as own, run(folder, hashed=True) as hashed:
            models = {"deltas": follow(own), "once a day": follow(own), "deltas, hashed": follow(hashed)}
            days(events, models, given.days, given.day_seconds)
        with run(folder, hashed=False) as own:
            follower = follow(own)
            follower.catch_up()
            before = psutil.Process().memory_info().rss
            seconds = seconds_to_prediction(events, follower, given.times)
            middle, longest = statistics.median(seconds), max(seconds)
            print(f"\nfrom a click to a prediction: median {middle:.1f} s, longest {longest:.1f} s")
            stream = threading.Event()

            def feed() -> None:
                number = 0
                while not stream.wait(0.5):
                    number += 1
                    events.add(*growing.clicks(given.days, number, FILE_EVENTS))

            thread = threading.Thread(target=feed)
            thread.start()
            without: list[float] = []
            beside: list[float] = []
            first = follower.version.number
            for _ in range(given.rounds):
                without += latencies(follower, lambda: None, 10)
                beside += latencies(follower, follower.catch_up, 10)
            stream.set()
            thread.join()
            applied = follower.version.number - first
            grown = (psutil.Process().memory_info().rss - before) / 2**20
            ends = [float(np.percentile(each, 99)) * 1e3 for each in (without, beside)]
            print(
                f"p99 of a prediction: {ends[0]:.2f} ms without deltas, {ends[1]:.2f} ms beside {applied} deltas "
                f"({ends[1] / ends[0]:.2f} times); the process has {grown:,.0f} MiB more"
            )


if __name__ == "__main__":
    main()
