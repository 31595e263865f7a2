"""The trainer's image has all packages for training, and trains in a locked-down container."""

import json
from typing import Any

from testinfra.host import Host

import trainer
from tests.images.conftest import IMAGE, LOCKED_DOWN, docker

PYTHON = "/opt/trainer/bin/python"


def test_its_size_is_below_the_documented_limit(image: Any) -> None:
    assert image["Size"] < 1.72e9


def test_its_versions_match_the_project(container: Host) -> None:
    program = "import platform, tensorflow; print(platform.python_version(), tensorflow.__version__)"
    python, tensorflow = container.check_output(f"{PYTHON} -c '{program}'").split()
    assert python.startswith("3.11.")
    assert tensorflow.startswith("2.21.")
    assert container.check_output("trainer --version") == trainer.__version__


def test_it_reads_tables(container: Host) -> None:
    program = "import pyarrow.csv, pyarrow.dataset, pyarrow.parquet; from trainer.data.columns import files, streamed"
    container.check_output(f"{PYTHON} -c '{program}'")


def test_it_has_the_ops_on_rows_of_tables_and_numbers_of_requests(container: Host) -> None:
    program = "from trainer.kernels import library; assert library.load(); "
    program += "from trainer import compiler; from trainer.tensorflow import request_ids; "
    program += "assert compiler.place(request_ids.SOURCE).exists()"
    container.check_output(f"{PYTHON} -c '{program}'")


def test_its_packages_are_compatible(container: Host) -> None:
    assert container.check_output("pip check") == "No broken requirements found."


def test_modules_import_without_the_files_removed_from_packages(container: Host) -> None:
    modules = "tensorflow.lite, keras, h5py, numpy.testing, scipy.stats, scipy.special, sklearn.ensemble, clang.cindex"
    assert container.run(f"{PYTHON} -c 'import {modules}'").rc == 0


def test_a_cluster_trains_in_it(image: Any) -> None:
    command = ["launch", "--ps", "1", "--workers", "2", "--train_steps", "600", "--json"]
    done = docker("run", "--rm", *LOCKED_DOWN, IMAGE, *command)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["global_step"] >= 600
    assert result["test_accuracy"] > 0.9


def test_it_has_tensorboard(container: Host) -> None:
    assert container.check_output("tensorboard --version").startswith("2.")
