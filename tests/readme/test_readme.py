"""README's first commands work, word for word, on an empty Debian with only the packages that README names.

`make test-readme` runs it; CI does not. It starts a container on the local Docker engine, which has a clone of the last
commit and the network. The container reaches package indexes as this machine does, by the variables in `PASSED` and the
certificates of SSL_CERT_FILE.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster.engine import BASE_IMAGE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PACKAGES = ("git", "make", "python3", "python3-venv")
PLACEHOLDER = "git clone … "
LAST_RUN = "$(ls -d runs/2* | tail -1)"
USER = "newcomer"
INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "UV_DEFAULT_INDEX", "UV_INDEX")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
PASSED = (*INDEXES, *PROXIES, "PIP_DEFAULT_TIMEOUT")
CERTIFICATES = "/certificates.crt"


def blocks(section: str) -> list[list[str]]:
    """The blocks of commands in a section of README: indented lines, without those of fenced blocks."""
    text = README.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"(?:^ {4}\S.*\n)+", outside, re.MULTILINE)
    return [[line.strip() for line in block.splitlines()] for block in found]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[str]:
    """The name of a running container with what README names, a user, and a clone of this repository in /source.git."""
    subprocess.run(["git", "clone", "--quiet", "--bare", ROOT, tmp_path / "source.git"], check=True)
    options = [f"--volume={tmp_path / 'source.git'}:/source.git:ro"]
    options += [f"--env={name}" for name in PASSED if name in os.environ]
    if given := os.environ.get("SSL_CERT_FILE"):
        shutil.copy(given, tmp_path / "ca.crt")
        options += [f"--volume={tmp_path / 'ca.crt'}:{CERTIFICATES}:ro"]
        options += [f"--env={name}={CERTIFICATES}" for name in ("SSL_CERT_FILE", "PIP_CERT")]
    started = docker("run", "--detach", "--init", *options, BASE_IMAGE, "sleep", "infinity")
    name = started.stdout.strip()
    try:
        docker("exec", name, "apt-get", "--quiet", "update")
        install = ("apt-get", "--quiet", "install", "--yes", "--no-install-recommends")
        docker("exec", "--env=DEBIAN_FRONTEND=noninteractive", name, *install, *PACKAGES)
        docker("exec", name, "useradd", "--create-home", USER)
        docker("exec", name, "git", "config", "--system", "safe.directory", "*")
        yield name
    finally:
        docker("rm", "--force", name)


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the docker command, and fail the test with its output if it fails."""
    done = subprocess.run(["docker", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"docker {' '.join(words)}:\n{done.stdout[-5000:]}"
    return done


@pytest.mark.timeout(1800)
def test_the_commands_for_a_laptop_work_on_an_empty_machine(machine: str) -> None:
    """Those that name files of the reader, such as mine.py, are left out."""
    first, second, third, fourth, _ = blocks("On a laptop")
    assert first[0].startswith(PLACEHOLDER)
    first[0] = first[0].replace(PLACEHOLDER, "git clone --quiet /source.git ")
    folder = f"/home/{USER}"
    for block in (first, second):
        started = time.monotonic()
        script = "\n".join(["set -ex", *block]).replace("runs/…", LAST_RUN)
        done = docker("exec", f"--user={USER}", f"--workdir={folder}", machine, "bash", "-c", script)
        print(f"{block}: {time.monotonic() - started:.0f} s\n{done.stdout}")
        accuracy = re.search(r"^(?:test|the model of step \d+:) accuracy ([\d.]+)", done.stdout, re.MULTILINE)
        assert accuracy, done.stdout
        assert float(accuracy[1]) >= 0.7
        folder = f"/home/{USER}/distributed-tensorflow"
    script = f"set -ex\n{third[0]}\n{fourth[0]}\n.venv/bin/trainer report {LAST_RUN}"
    docker("exec", f"--user={USER}", f"--workdir={folder}", machine, "bash", "-c", script)


def test_a_machine_without_venv_gets_one_sentence(machine: str) -> None:
    docker("exec", machine, "apt-get", "--quiet", "remove", "--yes", "python3-venv", "python3.11-venv")
    script = "git clone --quiet /source.git distributed-tensorflow && cd distributed-tensorflow && ! make run"
    done = docker("exec", f"--user={USER}", f"--workdir=/home/{USER}", machine, "bash", "-c", script)
    (sentence,) = [line for line in done.stdout.splitlines() if line.startswith("install: ")]
    assert "apt-get install python3-venv" in sentence
    assert "Traceback" not in done.stdout
