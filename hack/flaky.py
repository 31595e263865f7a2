"""The command `python -m hack.flaky`: repeats tests on a busy machine, and counts the failures of each.

It runs pytest, and writes only pytest's results, into a temporary folder.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from hack.busy_loops import busy_loops

FINISHED = (0, 1)
"""pytest's exit codes after which the results of all tests are known."""


def main(words: Sequence[str]) -> int:
    """Run the tests as `words` say; return 0 if all passed each time, 1 if one failed or hung, 2 if none ran."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.flaky",
        usage="%(prog)s [--rounds N] [--loops N] [--first] TEST…",
        description="Repeat tests while busy loops compete for the CPUs, and count the failures of each test. "
        "Tests with the mark `long` are left out. The exit code is 0 if no test fails in any round.",
        epilog="TEST: arguments of pytest, such as folders, files, FILE::TEST, -k WORD, -n 2.",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each test runs (default: 5)")
    parser.add_argument("--loops", type=int, default=2, metavar="N", help="busy loops beside them (default: 2)")
    parser.add_argument("--first", action="store_true", help="end after the first round in which a test fails")
    arguments, tests = parser.parse_known_args(words)
    if not tests:
        parser.error("no test is named; name a folder, a file or FILE::TEST, such as tests/processes/test_launch.py")
    ran, failed = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, busy_loops(arguments.loops):
        for number in range(1, arguments.rounds + 1):
            print(f"round {number} of {arguments.rounds}", flush=True)
            results = Path(folder) / f"{number}.xml"
            code = _run(tests, results)
            if code not in FINISHED:
                print(f"flaky: pytest ended with code {code}; see its output above.", file=sys.stderr)
                return 2
            if not results.exists():  # pytest-timeout ends the process
                print(table(ran, failed))
                print(f"flaky: round {number} has no results: a test hung; see its output above.", file=sys.stderr)
                return 1
            found = outcomes(results)
            ran.update(found.keys())
            failed.update(name for name, has_failed in found.items() if has_failed)
            if arguments.first and failed:
                break
    print(table(ran, failed))
    if not ran:
        print("flaky: every test was skipped.", file=sys.stderr)
        return 2
    return 1 if failed else 0


def outcomes(results: Path) -> dict[str, bool]:
    """Return whether each test of a JUnit report has failed, without those that were skipped."""
    found: dict[str, bool] = {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):  # noqa: S314 - pytest has written it
        if case.find("skipped") is None:
            name = f"{case.get('classname')}::{case.get('name')}"
            has_failed = case.find("failure") is not None or case.find("error") is not None
            found[name] = found.get(name, False) or has_failed  # a failed teardown is a case of its own
    return found


def table(ran: Counter[str], failed: Counter[str]) -> str:
    """Return a table of the tests that have failed, the most frequent first, and a summary."""
    rounds = max(ran.values(), default=0)
    lines = [f"{count:4} of {ran[name]} failed: {name}" for name, count in failed.most_common()]
    return "\n".join([*lines, f"{len(failed)} of {len(ran)} tests failed in {rounds} round{'s' * (rounds != 1)}"])


def _run(tests: Sequence[str], results: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-m", "not long", "--tb=short", "--durations=0", "--durations-min=60"]
    # A test that has failed must not run first in the next round.
    return subprocess.run([*command, "-p", "no:cacheprovider", f"--junitxml={results}", *tests]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
