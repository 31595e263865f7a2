"""The local Docker engine: uses the one that runs, or starts one in a box of its own.

Called by `engine`, `up`, `load` and `down`. An engine started here keeps its images in Docker's usual folder, so they
are there again the next time, and can build and save images; but ports that it publishes are open in its box only.
"""

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from tests.cluster.box import Box, environment, tail
from tests.cluster.errors import ClusterError, UsageError
from tests.cluster.places import CACHE, SYSTEM_PATH
from tests.cluster.progress import step
from tests.cluster.waiting import until

BOX = Box("docker", overlays=("/etc", "/opt"))
BASE_IMAGE = "debian:bookworm-slim"
_PROCESS_ID = BOX.folder / "dockerd.pid"
USUAL_SOCKET = Path("/run/docker.sock")

# What Debian's slim images leave out too, and what debootstrap leaves behind.
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
    """Whether an engine answers where the docker command looks for it."""
    if not shutil.which("docker", path=SYSTEM_PATH):
        return False
    return docker("version", "--format", "{{.Server.Version}}").returncode == 0


def start() -> None:
    """Start an engine unless one answers.

    Raises:
        ClusterError: it did not start; its log's last lines follow.
    """
    if answers():
        return
    with step("dockerd"):
        BOX.start()
        socket = BOX.folder / "docker.sock"
        if "dockerd" not in BOX.programs():
            own_folders = [f"--exec-root={BOX.folder}/run", f"--pidfile={_PROCESS_ID}"]
            own_cgroup = ["--exec-opt=native.cgroupdriver=cgroupfs", f"--cgroup-parent=/{BOX.cgroup}"]
            BOX.spawn("dockerd", ["dockerd", f"--host=unix://{socket}", *own_folders, *own_cgroup])
        if not USUAL_SOCKET.exists():
            USUAL_SOCKET.unlink(missing_ok=True)  # a link that leads nowhere
            USUAL_SOCKET.symlink_to(socket)
        if not until(lambda: answers() or "dockerd" not in BOX.programs(), 30) or not answers():
            raise ClusterError(f"dockerd did not start; its log ends:\n{tail(BOX.log('dockerd'))}")


def stop() -> None:
    """End the engine that `start` started, and no other."""
    if "dockerd" in BOX.programs():
        BOX.run(["sh", "-c", f"kill $(cat {_PROCESS_ID})"])  # asked, not killed: it keeps a database of its images
        until(lambda: "dockerd" not in BOX.programs(), 15)
    BOX.stop()
    if USUAL_SOCKET.is_symlink() and USUAL_SOCKET.readlink().is_relative_to(BOX.folder):
        USUAL_SOCKET.unlink()


def has_base_image() -> bool:
    """Whether the engine has Debian's base image, or has got it from a registry just now."""
    return any(docker(*command, BASE_IMAGE).returncode == 0 for command in (["image", "inspect"], ["pull", "--quiet"]))


def make_base_image() -> None:
    """Make Debian's base image by debootstrap, under the name that it has in registries.

    Raises:
        ClusterError: debootstrap failed.
    """
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", "bookworm", folder], capture_output=True, text=True, env=environment()
        )
        if done.returncode:
            raise ClusterError(
                f"{BASE_IMAGE} comes from no registry here, and debootstrap cannot make it:\n{done.stdout[-1000:]}"
            )
        left_out = [f"--exclude={path}*" for path in NOT_IN_THE_BASE_IMAGE]
        with subprocess.Popen(["tar", *left_out, "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
            _import(BASE_IMAGE, 'CMD ["bash"]', tar.stdout)


def create_image(name: str, program: Path) -> None:
    """Make an image that holds one static program and starts it."""
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
    """The digest by which the engine knows an image.

    Raises:
        UsageError: the engine has no such image.
    """
    found = docker("image", "inspect", "--format", "{{.Id}}", image)
    if found.returncode:
        raise UsageError(f"the local Docker engine has no image {image}: build or pull it first (docker images).")
    return found.stdout.decode().strip()


def saving(image: str) -> subprocess.Popen[bytes]:
    """Start to write an image of the engine's to a pipe, as an archive that containerd reads."""
    return subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE, env=environment())
