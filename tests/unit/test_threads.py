"""The sizes of TensorFlow's thread pools."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import Settings
from trainer.training.threads import Threads, _cgroup_limit, choose, usable_cpus

pytestmark = pytest.mark.slow

V2 = "0::/\n"
V1 = "12:memory:/\n4:cpu,cpuacct:/\n0::/\n"


@pytest.mark.parametrize(
    ("content", "limit"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("50000 100000\n", 0.5), ("odd\n", None)]
)
def test_the_limit_of_a_container_by_cgroup_version_2(tmp_path: Path, content: str, limit: float | None) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert _cgroup_limit(tmp_path, V2) == limit
    assert _cgroup_limit(tmp_path, "") == limit


def write_version_1(folder: Path, quota: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize(("quota", "limit"), [("-1\n", None), ("400000\n", 4.0)])
def test_the_limit_of_a_container_by_cgroup_version_1(tmp_path: Path, quota: str, limit: float | None) -> None:
    write_version_1(tmp_path / "cpu", quota)
    assert _cgroup_limit(tmp_path, V1) == limit


def test_the_lowest_limit_of_all_parent_groups_counts(tmp_path: Path) -> None:
    own = tmp_path / "system.slice" / "trainer.service"
    own.mkdir(parents=True)
    for group, content in ((own, "400000 100000"), (own.parent, "200000 100000"), (tmp_path, "max 100000")):
        (group / "cpu.max").write_text(content)
    assert _cgroup_limit(tmp_path, "0::/system.slice/trainer.service\n") == 2.0


def test_a_path_that_a_container_does_not_see_does_not_hide_its_limit(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("300000 100000")
    assert _cgroup_limit(tmp_path, "0::/kubepods/burstable/pod1/container\n") == 3.0
    write_version_1(tmp_path / "cpu", "200000")
    assert _cgroup_limit(tmp_path, "4:cpu,cpuacct:/docker/container\n") == 2.0


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert _cgroup_limit(tmp_path, V1) is None


def test_the_cpu_affinity_counts(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    cpu = min(os.sched_getaffinity(0))
    bind = f"import os; os.sched_setaffinity(0, [{cpu}])"
    program = f"{bind}; from trainer.training import threads; print(threads.usable_cpus())"
    assert run_python("-c", program).stdout == "1\n"


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 8), (0.5, 1), (1.5, 2), (4.0, 4), (100.0, 8)], ids=lambda value: str(value)
)
def test_a_containers_limit_cuts_the_cpus_and_counts_a_part_as_one(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr("trainer.training.threads._cgroup_limit", lambda *_: limit)
    assert usable_cpus() == expected


@pytest.mark.parametrize(
    ("role", "cpus", "expected"),
    [
        (None, 8, Threads(8, 8)),
        ("worker", 8, Threads(4, 4)),
        ("chief", 8, Threads(4, 4)),
        ("worker", 1, Threads(1, 1)),
        ("ps", 8, Threads(1, 4)),
        ("ps", 1, Threads(1, 1)),
    ],
)
def test_each_role_has_its_thread_pools(
    monkeypatch: pytest.MonkeyPatch, role: str | None, cpus: int, expected: Threads
) -> None:
    monkeypatch.setattr("trainer.training.threads.usable_cpus", lambda: cpus)
    assert choose(Settings(), role) == expected


def test_the_settings_override_the_defaults() -> None:
    assert choose(Settings(intra_op_threads=3, inter_op_threads=5), "ps") == Threads(3, 5)


def test_the_effective_threads_are_printed(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    words = ["-m", "trainer", "train", "--print_config", "--ps_hosts=a:1", "--worker_hosts=b:1", "--task_index=0"]
    printed = run_python(*words, "--job_name=ps", "--inter_op_threads=7").stdout.splitlines()
    assert "intra_op_threads: 1" in printed
    assert "inter_op_threads: 7" in printed


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no SCHED_BATCH")
def test_batch_scheduling_is_used(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    policy = (
        "import os, trainer.training.threads as t; t.use_batch_scheduling(); "
        "print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    )
    assert run_python("-c", policy).stdout == "True\n"
