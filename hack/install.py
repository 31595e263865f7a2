"""Installs what a lock file pins, and this package, into `.venv`: `make run` and `make setup` run it.

It uses only the standard library, because nothing is installed yet. It writes to `.venv`; uv and pip write to their
caches.
"""

import argparse
import contextlib
import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints"
INSTALLER = CONSTRAINTS / "uv.txt"
LOCKS = {"run": CONSTRAINTS / "cpu.txt", "setup": CONSTRAINTS / "dev.txt"}
CONTENTS = {
    "run": "TensorFlow and what else training needs, 2 GB on disk, in about a minute",
    "setup": "all that development needs, 3 GB on disk, in about two minutes",
}

PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
"""Settings of pip that name the package index, and the variables in which uv takes the same values."""

FOR_UV = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
"""uv searches all indexes, as pip does. The locks have the hashes of what may be installed."""

UV_PHASES = {"Prepared": "installing packages", "Installed": "compiling packages"}
PIP_PHASES = {"Installing collected": "installing and compiling packages"}
"""What a program does after it has printed these words."""

UNREACHABLE = re.compile(
    r"dns error|failed to lookup|Name or service not known|name resolution|Could not resolve|tcp connect error"
    r"|Connection refused|Network is unreachable|No route to host|timed out|Failed to establish a new connection",
    re.IGNORECASE,
)
"""What uv and pip print if they cannot reach the package index."""


class InstallError(Exception):
    """The installation is not possible; the message is one sentence, or ends with the output of a program."""


class ProgramError(Exception):
    """A program has failed; `output` is all that it has printed."""

    def __init__(self, name: str, output: str) -> None:
        super().__init__(name)
        self.name, self.output = name, output


class Terminated(BaseException):
    """A signal ends this process, or its output is closed; the argument is the signal's number."""


class Progress:
    """Shows what is done and for how long: a terminal has one line that is rewritten, else each phase has a line."""

    SECONDS = 1.0
    """How often it shows that a phase goes on."""

    def __init__(self) -> None:
        self._on_terminal = sys.stdout.isatty()
        self._phase = ""
        self._started = self._phase_started = self._shown = time.monotonic()

    def begin(self, text: str) -> None:
        """Print a text on a line of its own, before the first phase."""
        self._print(f"{text}\n")

    def phase(self, name: str) -> None:
        """Begin a phase."""
        self._end_line()
        self._phase, self._phase_started = name, time.monotonic()
        self._show(f"  {name} ")

    def tick(self) -> None:
        """Show that the phase goes on, if it is time for that."""
        if time.monotonic() - self._shown >= self.SECONDS:
            self._show(".")

    def _show(self, more: str) -> None:
        self._shown = time.monotonic()
        if self._on_terminal:
            line = f"  {self._phase} … {self._shown - self._started:.0f} s"
            more = f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}"
        self._print(more)

    def end(self, text: str = "") -> None:
        """End the last phase, and print a text with the seconds that all phases took."""
        self._end_line()
        self._phase = ""
        if text:
            self._print(f"{text} in {time.monotonic() - self._started:.0f} s\n")

    def _end_line(self) -> None:
        if self._phase:
            self._print("\r\x1b[K" if self._on_terminal else f" {time.monotonic() - self._phase_started:.0f} s\n")

    @staticmethod
    def _print(text: str) -> None:
        try:
            os.write(sys.stdout.fileno(), text.encode())  # unlike `print`, it leaves nothing to write at the exit
        except OSError:
            raise Terminated(signal.SIGPIPE) from None


def main(words: Sequence[str]) -> int:
    """Install what the target in `words` needs; return the exit code."""
    parser = argparse.ArgumentParser(description="Install pinned packages and this package into .venv.")
    parser.add_argument("target", choices=LOCKS, help="run: what training needs; setup: what development needs")
    target = parser.parse_args(words).target
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(number, _raise_terminated)
    progress = Progress()
    try:
        install(target, progress)
    except InstallError as error:
        progress.end()
        print(f"install: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Terminated) as stopped:
        with contextlib.suppress(Terminated, OSError):  # the terminal may be closed
            progress.end()
            print("install: interrupted; the next make installs from the beginning", file=sys.stderr, flush=True)
        return 128 + (stopped.args[0] if isinstance(stopped, Terminated) else signal.SIGINT)
    return 0


def _raise_terminated(number: int, _frame: object) -> NoReturn:
    raise Terminated(number)


def install(target: str, progress: Progress) -> None:
    """Install into `.venv`, and then write the stamp of the target.

    The packages of `setup` include those of `run`, in the same versions, and go on top of them. Any other `.venv` is
    recreated: it is of another Python, of other locks, or of an installation that did not end.

    Raises:
        InstallError: this is not possible.
    """
    if target == "run" and _is_current("setup"):  # as in `make setup run`
        _stamp("run").touch()
        return
    progress.begin(f"installing into .venv: {CONTENTS[target]}")
    is_base = target == "setup" and _is_current("run")
    for stamp in map(_stamp, LOCKS):
        stamp.unlink(missing_ok=True)
    if not is_base:
        _make_venv(progress)
    try:
        _install_packages(target, progress)
    except ProgramError as error:
        raise InstallError(_explain(error)) from None
    _stamp(target).touch()
    progress.end("installed")


def _stamp(target: str) -> Path:
    """The file that says that an installation has ended; the Makefile compares its time with those of the locks."""
    return VENV / f".{target}-done"


def _is_current(target: str) -> bool:
    """Whether the packages of a target are installed as the locks have them, for this Python."""
    stamp, sources = _stamp(target), (LOCKS[target], INSTALLER, ROOT / "pyproject.toml")
    if not stamp.exists() or any(source.stat().st_mtime > stamp.stat().st_mtime for source in sources):
        return False
    python = "{}.{}.{}".format(*sys.version_info[:3])
    return f"version = {python}\n" in (VENV / "pyvenv.cfg").read_text()


def _make_venv(progress: Progress) -> None:
    if VENV.is_symlink():
        raise InstallError(f"{VENV} is a link, whose target another clone uses: remove the link, and run make again.")
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise InstallError(
            f"{sys.executable} has no complete venv module: install it, on Debian and Ubuntu with "
            "`apt-get install python3-venv`, and run make again."
        )
    progress.phase("creating a virtual environment")
    try:
        _run([sys.executable, "-m", "venv", "--clear", str(VENV)], progress)
    except ProgramError as error:
        raise InstallError(f"python -m venv has failed:\n{error.output}") from None


def _install_packages(target: str, progress: Progress) -> None:
    uv = shutil.which("uv") or _install_uv(progress)
    lock = ["--require-hashes", "--requirement", str(LOCKS[target])]
    this_package = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    why = "is not available"
    if uv:
        try:
            _install_with_uv([uv, "pip", "install", "--python", str(PYTHON)], lock, this_package, progress)
            return
        except ProgramError as error:  # pip also knows proxies, certificates and folders of wheels from its settings
            why = f"has failed ({_reason(error.output)})"
    progress.phase(f"downloading packages with pip, as uv {why}: this takes some minutes")
    _run([*_pip("install"), *lock, "--requirement", str(_lock_of_flit_core())], progress, PIP_PHASES)
    progress.phase("installing this package")
    _run([*_pip("install"), *this_package], progress)


def _install_with_uv(
    command: Sequence[str], lock: Sequence[str], this_package: Sequence[str], progress: Progress
) -> None:
    environment = _environment_of_uv()
    progress.phase("downloading packages")
    packages = [*lock, "--requirement", str(INSTALLER)]
    _run([*command, "--compile-bytecode", *packages], progress, UV_PHASES, environment)
    progress.phase("installing this package")
    _run([*command, "--offline", *this_package], progress, environment=environment)


def _install_uv(progress: Progress) -> str | None:
    """Install uv, and flit_core, which builds this package.

    Returns:
        The path of uv; None if there is no uv for this machine.

    Raises:
        ProgramError: the package index cannot be reached.
    """
    progress.phase("downloading uv")
    try:
        _run([*_pip("install"), "--only-binary=:all:", "--require-hashes", "--requirement", str(INSTALLER)], progress)
    except ProgramError as error:
        if UNREACHABLE.search(error.output):
            raise
    return shutil.which("uv", path=PYTHON.parent)


def _lock_of_flit_core() -> Path:
    """The lock of uv without uv, which pip would compile on a machine for which there is no uv."""
    file = VENV / "flit-core.txt"
    file.write_text(re.sub(r"^uv==.*?(?=^\S|\Z)", "", INSTALLER.read_text(), flags=re.MULTILINE | re.DOTALL))
    return file


def _pip(command: str) -> list[str]:
    return [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries=2", command]


def _environment_of_uv() -> dict[str, str]:
    """The environment for uv. uv does not read pip's settings, so it gets pip's package index unless it has its own."""
    listed = subprocess.run([*_pip("config"), "list"], capture_output=True, text=True).stdout
    # Newer versions of pip list each file; a user's comes after that in /etc.
    in_files = {key: literal_eval(value) for key, value in re.findall(r"^\s*([\w.-]+)=('.*')$", listed, re.MULTILINE)}
    found = FOR_UV | os.environ
    for name, variable in PIP_TO_UV.items():
        given = os.environ.get(f"PIP_{name.upper().replace('-', '_')}")
        value = given or in_files.get(f"install.{name}") or in_files.get(f"global.{name}")
        if value:
            found.setdefault(variable, " ".join(value.split()))  # several values are on lines of their own
    return found


def _run(
    command: Sequence[str],
    progress: Progress,
    phases: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a program silently, with progress.

    Args:
        command: The program and its arguments.
        progress: Shows that the program runs.
        phases: The phase that begins when the program prints a line with such a beginning.
        environment: That of the program; by default that of this process.

    Raises:
        ProgramError: it has failed.
    """
    output, later = b"", dict(phases or {})
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            while True:
                progress.tick()
                if not select.select([process.stdout], [], [], Progress.SECONDS)[0]:
                    continue
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    break
                output += chunk
                for words in [each for each in later if re.search(rf"^{each}\b".encode(), output, re.MULTILINE)]:
                    progress.phase(later.pop(words))
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise ProgramError(" ".join(command), output.decode(errors="replace"))


def _explain(error: ProgramError) -> str:
    if not UNREACHABLE.search(error.output):
        return f"{error.name} has failed:\n{error.output}"
    return (
        f"{_reason(error.output)}: connect this machine to the network, or name another index in the environment "
        "variable PIP_INDEX_URL, and run make again."
    )


def _reason(output: str) -> str:
    """Why a program has failed, in a few words."""
    if reason := UNREACHABLE.search(output):
        url = re.search(r"https?://[^\s`'\"),]+", output)
        return f"the package index{f' ({url[0]})' if url else ''} cannot be reached ({reason[0]})"
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    return (lines or output.splitlines() or ["without a message"])[0][:200]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
