"""Fits y = 2x + 10 to noisy data on the machines of two standard servers, from a process that is not in their cluster.

    python linear_regression_client.py --servers=a:2222,b:2222

The servers (`standard_server.py`) know nothing of clients: any number of them come and go, one after the other or at
the same time. Without `--servers`, it finds the workers in TF_CONFIG's cluster.

A client that is killed cannot give the servers' memory back: its variables stay, in nobody's way, until they restart.
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

STEPS = 200
LEARNING_RATE = 0.5
EXAMPLES = 2000


def main() -> None:
    """Ask the servers, and print the line that they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", help="HOST:PORT,HOST:PORT of worker 0 and worker 1; default: TF_CONFIG's workers")
    servers = parser.parse_args().servers
    workers = servers.split(",") if servers else json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    slope, intercept = fit(f"grpc://{workers[0]}")
    print(f"slope: {slope:.4f}, intercept: {intercept:.4f}", flush=True)


def fit(target: str) -> tuple[float, float]:
    """Fit a line by gradient descent: each worker keeps one of the variables and half of the examples."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, EXAMPLES).astype(np.float32)
    y = (2 * x + 10 + random.normal(0, 0.1, EXAMPLES)).astype(np.float32)

    tf1.disable_v2_behavior()
    with tf.device("/job:worker/task:0"):
        slope = tf1.get_variable("slope", [])
    with tf.device("/job:worker/task:1"):
        intercept = tf1.get_variable("intercept", [])
    losses = []
    for worker in range(2):
        with tf.device(f"/job:worker/task:{worker}"):
            losses.append(tf.reduce_mean(tf.square(slope * x[worker::2] + intercept - y[worker::2])))
    optimizer = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
    # Each gradient is computed where its part of the loss is.
    step = optimizer.minimize(tf.add_n(losses) / len(losses), colocate_gradients_with_ops=True)

    # Variables live on the servers and outlast a session, unless it is isolated: then they are this client's alone, and
    # gone with its session. The session goes to worker 0, which knows where the other one is.
    with tf1.Session(target, config=tf1.ConfigProto(isolate_session_state=True)) as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(STEPS):
            session.run(step)
        found_slope, found_intercept = session.run([slope, intercept])
    return float(found_slope), float(found_intercept)


if __name__ == "__main__":
    main()
