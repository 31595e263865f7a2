"""The local Docker engine: uses a running one, or starts one in a sandbox.

The commands `engine`, `up`, `load` and `down` use it. An engine started here can build and save images. It stores them
in Docker's default folder, so they survive `down`. Its published ports are open only in its sandbox.
"""

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from hack.cluster.errors import ClusterError, UsageError
from hack.cluster.paths import CACHE, SYSTEM_PATH
from hack.cluster.progress import step
from hack.cluster.sandbox import Sandbox, environment, tail
from hack.cluster.waiting import until

SANDBOX = Sandbox("docker", overlays=("/etc", "/opt"))
BASE_IMAGE = "debian:bookworm-slim"
_PROCESS_ID = SANDBOX.folder / "dockerd.pid"
DEFAULT_SOCKET = Path("/run/docker.sock")

# Debian's slim images exclude these too, or debootstrap leaves them behind.
NOT_IN_THE_BASE_IMAGE = (
    "./usr/share/doc/",
    "./usr/share/info/",
    "./usr/share/locale/",
    "./usr/share/man/",
    "./var/cache/apt/",
    "./var/lib/apt/lists/",
    "./var/log/",
)


def docker(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the docker command with these arguments."""
    return subprocess.run(["docker", *arguments], capture_output=True, env=environment())


def answers() -> bool:
    """Whether the docker command reaches an engine."""
    if not shutil.which("docker", path=SYSTEM_PATH):
        return False
    return docker("version", "--format", "{{.Server.Version}}").returncode == 0


def start() -> None:
    """Start an engine unless one is running.

    Raises:
        ClusterError: the engine does not start; the message has the end of its log.
    """
    if answers():
        return
    with step("dockerd"):
        SANDBOX.start()
        socket = SANDBOX.folder / "docker.sock"
        if "dockerd" not in SANDBOX.programs():
            own_folders = [f"--exec-root={SANDBOX.folder}/run", f"--pidfile={_PROCESS_ID}"]
            own_cgroup = ["--exec-opt=native.cgroupdriver=cgroupfs", f"--cgroup-parent=/{SANDBOX.cgroup}"]
            SANDBOX.spawn("dockerd", "dockerd", [f"--host=unix://{socket}", *own_folders, *own_cgroup])
        if not DEFAULT_SOCKET.exists():
            DEFAULT_SOCKET.unlink(missing_ok=True)  # a dangling link
            DEFAULT_SOCKET.symlink_to(socket)
        if not until(lambda: answers() or "dockerd" not in SANDBOX.programs(), 30) or not answers():
            raise ClusterError(f"dockerd does not start; its log ends:\n{tail(SANDBOX.log('dockerd'))}")


def stop() -> None:
    """Stop the engine that `start` started, and no other."""
    if "dockerd" in SANDBOX.programs():
        SANDBOX.run(
            ["sh", "-c", f"kill $(cat {_PROCESS_ID})"]
        )  # SIGTERM, because SIGKILL could corrupt its database of images
        until(lambda: "dockerd" not in SANDBOX.programs(), 15)
    SANDBOX.stop()
    if DEFAULT_SOCKET.is_symlink() and DEFAULT_SOCKET.readlink().is_relative_to(SANDBOX.folder):
        DEFAULT_SOCKET.unlink()


def has_base_image() -> bool:
    """Whether the engine has Debian's base image; pulls it if a registry is reachable."""
    return any(docker(*command, BASE_IMAGE).returncode == 0 for command in (["image", "inspect"], ["pull", "--quiet"]))


def make_base_image() -> None:
    """Create Debian's base image with debootstrap, under its name in registries.

    Raises:
        ClusterError: debootstrap failed.
    """
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", "bookworm", folder], capture_output=True, text=True, env=environment()
        )
        if done.returncode:
            raise ClusterError(f"cannot pull {BASE_IMAGE}, and debootstrap cannot create it:\n{done.stdout[-1000:]}")
        excluded = [f"--exclude={path}*" for path in NOT_IN_THE_BASE_IMAGE]
        with subprocess.Popen(["tar", *excluded, "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
            _import(BASE_IMAGE, 'CMD ["bash"]', tar.stdout)


def create_image(name: str, program: Path) -> None:
    """Create an image with one static program as its entrypoint."""
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(program, arcname=program.name)
        archive.seek(0)
        _import(name, f'ENTRYPOINT ["/{program.name}"]', archive)


def _import(name: str, change: str, archive: IO[bytes] | None) -> None:
    done = subprocess.run(
        ["docker", "import", "--change", change, "-", name], stdin=archive, capture_output=True, text=True
    )
    if done.returncode:
        raise ClusterError(f"docker cannot import {name}: {done.stderr.strip()}")


def identity(image: str) -> str:
    """The ID of an image in the engine.

    Raises:
        UsageError: the engine does not have the image.
    """
    found = docker("image", "inspect", "--format", "{{.Id}}", image)
    if found.returncode:
        raise UsageError(
            f"the local Docker engine has no image {image}: build or pull it first; `docker images` lists what it has."
        )
    return found.stdout.decode().strip()


def saving(image: str) -> subprocess.Popen[bytes]:
    """Start to save an image from the engine to a pipe, in a format that containerd imports."""
    return subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE, env=environment())
