"""`make flaky`: it repeats tests, and counts the failures of each."""

from pathlib import Path

import pytest

from hack import flaky

pytestmark = pytest.mark.slow

TESTS = """
import os
import time
from pathlib import Path
import pytest

def test_good():
    pass

def test_bad_every_other_time():
    rounds = Path(__file__).with_name("rounds")
    rounds.write_text(rounds.read_text() + "x" if rounds.exists() else "x")
    assert len(rounds.read_text()) % 2

@pytest.fixture
def bad_end():
    yield
    raise ValueError

def test_bad_end(bad_end):
    pass

@pytest.mark.skip
def test_skipped():
    pass

def test_hanging():
    if "HANG" in os.environ:
        time.sleep(600)

@pytest.mark.long
def test_long():
    raise AssertionError
"""


@pytest.fixture
def tests(tmp_path: Path) -> str:
    """A file of tests, of which two fail."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\ntimeout_method = thread")
    (tmp_path / "test_mine.py").write_text(TESTS)
    return str(tmp_path / "test_mine.py")


def test_failures_are_counted_by_test(tests: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert flaky.main(["--rounds=2", "--loops=0", tests]) == 1
    assert capfd.readouterr().out.splitlines()[-3:] == [
        "   2 of 2 failed: test_mine::test_bad_end",
        "   1 of 2 failed: test_mine::test_bad_every_other_time",
        "2 of 4 tests failed in 2 rounds",
    ]


def test_it_ends_after_the_first_failure_if_that_is_wanted(tests: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert flaky.main(["--rounds=2", "--loops=0", "--first", tests]) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "1 of 4 tests failed in 1 round"


def test_tests_that_pass_each_time_end_with_code_0(tests: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert flaky.main(["--rounds=1", "--loops=1", tests, "-k", "good"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "0 of 1 tests failed in 1 round"


def test_a_run_without_results_is_an_error(tests: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert flaky.main(["--loops=0", tests, "-k", "absent"]) == 2
    assert capfd.readouterr().err == "flaky: pytest ended with code 5; see its output above.\n"


def test_skipped_tests_alone_are_an_error(tests: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert flaky.main(["--rounds=1", "--loops=0", tests, "-k", "skipped"]) == 2
    assert capfd.readouterr().err == "flaky: every test was skipped.\n"


def test_a_test_that_hangs_ends_with_the_counts_so_far(
    tests: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANG", "")
    assert flaky.main(["--loops=0", tests, "-k", "hanging", "--timeout=1"]) == 1
    printed = capfd.readouterr()
    assert printed.out.splitlines()[-1] == "0 of 0 tests failed in 0 rounds"
    assert printed.err.splitlines()[-1] == "flaky: round 1 has no results: a test hung; see its output above."
