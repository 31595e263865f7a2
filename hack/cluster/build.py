"""Builds the binaries of the cluster from the pinned Go modules, once per version of the modules.

Each folder of `modules/` is one Go module. Its go.mod names the commands (`tool`); its go.sum pins the content of every
dependency. The commands `build` and `up` use it. It writes only to the cache.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hack.cluster.errors import ClusterError, UsageError
from hack.cluster.paths import CACHE, MODULES
from hack.cluster.progress import step

OLDEST_GO = (1, 26)
BY_NAME_ONLY = {"helm3"}
"""Modules that `ensure` leaves out: only what CI skips uses them."""


def _variables() -> dict[str, str]:
    """The version variables that release builds of Kubernetes and Helm set.

    Without them the API server reports v0.0.0, `helm template` assumes Kubernetes 1.20, and a chart's kubeVersion
    rejects both.
    """
    pinned = re.search(r"\bk8s\.io/kubernetes v(\d+)\.(\d+)\.\d+", (MODULES / "kubernetes/go.mod").read_text())
    assert pinned, "modules/kubernetes/go.mod does not pin k8s.io/kubernetes"
    major, minor = pinned.groups()
    return {
        "k8s.io/component-base/version.gitVersion": pinned[0].split()[1],
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": major,
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": minor,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": major,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": minor,
        "helm.sh/helm/v4/pkg/chart/common.k8sVersionMajor": major,
        "helm.sh/helm/v4/pkg/chart/common.k8sVersionMinor": minor,
    }


def _modules() -> list[Path]:
    return sorted(path.parent for path in MODULES.glob("*/go.mod"))


def binaries() -> Path:
    """The folder for the binaries of this version of the modules; it may not exist yet."""
    digest = hashlib.sha256(repr(_variables()).encode())
    for file in sorted(path for path in MODULES.rglob("*") if path.is_file()):
        digest.update(file.relative_to(MODULES).as_posix().encode() + b"\0" + file.read_bytes())
    return CACHE / "bin" / digest.hexdigest()[:12]


def ensure() -> None:
    """Build all binaries that are not in the cache, but for those in BY_NAME_ONLY.

    Raises:
        UsageError: Go is missing or too old.
        ClusterError: a module does not build.
    """
    folder = binaries()
    stale = [
        module for module in _modules() if module.name not in BY_NAME_ONLY and not (folder / f".{module.name}").exists()
    ]
    if not stale:
        return
    _check_go()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building into {folder}")
    for module in stale:
        with step(module.name):
            tools = _tools(module)
            _build(module, "tool", f"{folder}/{next(iter(tools)) if len(tools) == 1 else ''}")
            (folder / f".{module.name}").touch()


def ensure_programs(names: Sequence[str]) -> None:
    """Build these programs if they are not in the cache. Without Go, accept those on PATH.

    Raises:
        UsageError: a name is unknown, or Go is missing or too old.
        ClusterError: a program does not build.
    """
    folder = binaries()
    packages = {name: _package(name) for name in names}
    absent = [name for name in names if not (folder / name).exists()]
    if not shutil.which("go"):
        absent = [name for name in absent if not shutil.which(name)]
    if not absent:
        return
    _check_go(instead=f", or put {', '.join(absent)} on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building into {folder}")
    for name in absent:
        module, package = packages[name]
        with step(name):
            _build(module, package, f"{folder}/{name}")


def _package(name: str) -> tuple[Path, str]:
    """The module whose go.mod names this command as a tool, and its import path."""
    for module in _modules():
        if path := _tools(module).get(name):
            return module, path
    raise UsageError(f"unknown program {name!r}: no go.mod in {MODULES} names it as a tool.")


def _tools(module: Path) -> dict[str, str]:
    """The import paths of a module's commands, by the names of their binaries.

    A single command gets the name of its folder: from its import path, Helm 3 would be "helm".
    """
    paths = re.findall(r"^(?:tool |\t)([^\s()]+)$", (module / "go.mod").read_text(), re.MULTILINE)
    return {module.name: paths[0]} if len(paths) == 1 else {path.rpartition("/")[2]: path for path in paths}


def _check_go(instead: str = "") -> None:
    if not shutil.which("go"):
        raise UsageError(f"go is not on PATH: install Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer{instead}.")
    version = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    found = re.match(r"go(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST_GO:
        raise UsageError(f"{version} is too old: put Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer first on PATH.")


def _build(module: Path, package: str, output: str) -> None:
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    settings = [
        f"-X {name}={value}" for name, value in _variables().items()
    ]  # the linker ignores names that a module lacks
    done = subprocess.run(
        [*command, f"-ldflags={' '.join(['-s -w', *settings])}", "-o", output, package],
        cwd=module,
        # Without cgo the build needs no C compiler, and the binaries are static. A compiler that collects no garbage
        # below this limit takes a quarter less CPU time.
        env=os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "", "GOGC": "off", "GOMEMLIMIT": "2GiB"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ClusterError(f"cannot build {module.name}; the compiler's output ends:\n{done.stderr[-2000:]}")
