"""`keras.Model.fit` in one process on the model of embedding.py: prints its rate in steps/s as a line of JSON.

The rate is that of as many steps as fit into MAX_SECONDS, without the first.
"""

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from benchmarks import embedding
from benchmarks.stopwatch import Stopwatch


def main() -> None:
    """Train, and print the rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_steps", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=100)
    arguments = parser.parse_args()
    ids, labels = embedding.train_data(None)
    stopwatch = Stopwatch(arguments.train_steps)
    examples = arguments.batch_size * (len(ids) // arguments.batch_size)
    embedding.model().fit(
        ids[:examples],
        labels[:examples],
        batch_size=arguments.batch_size,
        epochs=10**6,
        verbose=0,
        callbacks=[stopwatch],
    )
    print(json.dumps({"rate": stopwatch.rate}), flush=True)


if __name__ == "__main__":
    main()
