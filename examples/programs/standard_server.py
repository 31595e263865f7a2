"""A TensorFlow server that computes whatever its clients ask for, such as `linear_regression_client.py`.

It finds its place in the cluster in TF_CONFIG, knows nothing of any model, and never ends by itself.
"""

import tensorflow as tf


def main() -> None:
    """Serve as the task that TF_CONFIG names."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(cluster.cluster_spec(), cluster.task_type, cluster.task_id).join()


if __name__ == "__main__":
    main()
