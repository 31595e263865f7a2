"""Builds every binary of the cluster from the pinned Go modules, once for each version of them.

Each folder of `modules/` is one Go module: its go.mod names the commands (`tool`) and its go.sum fixes every byte that
goes into them. Called by `build` and `up`; writes to the cache only.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.errors import ClusterError, UsageError
from tests.cluster.places import CACHE, MODULES
from tests.cluster.progress import step

OLDEST_GO = (1, 26)


def _variables() -> dict[str, str]:
    """What the release builds of Kubernetes and Helm set, for else a chart's kubeVersion refuses both.

    The API server would call itself v0.0.0, and `helm template` would take the cluster for Kubernetes 1.20.
    """
    pinned = re.search(r"\bk8s\.io/kubernetes v(\d+)\.(\d+)\.\d+", (MODULES / "kubernetes/go.mod").read_text())
    assert pinned, "modules/kubernetes/go.mod pins k8s.io/kubernetes"
    major, minor = pinned.groups()
    return {
        "k8s.io/component-base/version.gitVersion": pinned[0].split()[1],
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": major,
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": minor,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": major,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": minor,
    }


def _modules() -> list[Path]:
    return sorted(path.parent for path in MODULES.glob("*/go.mod"))


def binaries() -> Path:
    """The folder that holds the binaries of this very version of the modules, built or not."""
    digest = hashlib.sha256(repr(_variables()).encode())
    for file in sorted(path for path in MODULES.rglob("*") if path.is_file()):
        digest.update(file.relative_to(MODULES).as_posix().encode() + b"\0" + file.read_bytes())
    return CACHE / "bin" / digest.hexdigest()[:12]


def ensure() -> None:
    """Build what is not in the cache yet.

    Raises:
        UsageError: there is no Go, or too old a one.
        ClusterError: a module did not build.
    """
    folder = binaries()
    stale = [module for module in _modules() if not (folder / f".{module.name}").exists()]
    if not stale:
        return
    _check_go()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building into {folder}")
    for module in stale:
        with step(module.name):
            said = subprocess.run(["go", "list", "-mod=readonly", "tool"], cwd=module, capture_output=True, text=True)
            # A lone command is called like its folder: etcd's own import path would make it "server".
            _build(module, "tool", f"{folder}/{module.name if len(said.stdout.split()) == 1 else ''}")
            (folder / f".{module.name}").touch()


def ensure_programs(names: Sequence[str]) -> None:
    """Build only these programs, where they are not in the cache yet. Without Go, those on PATH do.

    Raises:
        UsageError: a name is unknown, or there is no Go, or too old a one.
        ClusterError: a program did not build.
    """
    folder = binaries()
    packages = {name: _package(name) for name in names}
    absent = [name for name in names if not (folder / name).exists()]
    if not shutil.which("go"):
        absent = [name for name in absent if not shutil.which(name)]
    if not absent:
        return
    _check_go(instead=f", or {', '.join(absent)} of your own")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building into {folder}")
    for name in absent:
        module, package = packages[name]
        with step(name):
            _build(module, package, f"{folder}/{name}")


def _package(name: str) -> tuple[Path, str]:
    """The module whose go.mod names this command as a tool, and its import path."""
    for module in _modules():
        if found := re.search(rf"^(?:tool |\t)(\S+/{re.escape(name)})$", (module / "go.mod").read_text(), re.MULTILINE):
            return module, found[1]
    raise UsageError(f"{name!r} is no program that a go.mod of {MODULES.name}/ names.")


def _check_go(instead: str = "") -> None:
    if not shutil.which("go"):
        raise UsageError(f"go is not on PATH: install Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer{instead}.")
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    found = re.match(r"go(\d+)\.(\d+)", said)
    if found and (int(found[1]), int(found[2])) < OLDEST_GO:
        raise UsageError(f"{said} is too old: Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer must come first on PATH.")


def _build(module: Path, package: str, output: str) -> None:
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    settings = [f"-X {name}={value}" for name, value in _variables().items()]  # a module without the name ignores it
    done = subprocess.run(
        [*command, f"-ldflags={' '.join(['-s -w', *settings])}", "-o", output, package],
        cwd=module,
        # without cgo no C compiler is needed, and the binaries run anywhere
        env=os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ClusterError(f"{module.name} did not build; the compiler's last words:\n{done.stderr[-2000:]}")
