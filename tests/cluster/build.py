"""Builds every binary of the cluster from the pinned Go modules, once for each version of them.

Each folder of `modules/` is one Go module: its go.mod names the commands (`tool`) and its go.sum fixes every byte that
goes into them. Called by `build` and `up`; writes to the cache only.
"""

import hashlib
import os
import re
import shutil
import subprocess
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
            _build(module, folder)


def _check_go() -> None:
    if not shutil.which("go"):
        raise UsageError(f"go is not on PATH: install Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer.")
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    found = re.match(r"go(\d+)\.(\d+)", said)
    if found and (int(found[1]), int(found[2])) < OLDEST_GO:
        raise UsageError(f"{said} is too old: Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer must come first on PATH.")


def _build(module: Path, folder: Path) -> None:
    commands = subprocess.run(
        ["go", "list", "-mod=readonly", "tool"], cwd=module, capture_output=True, text=True
    ).stdout.split()
    # A lone command is called like its folder: etcd's own import path would make it "server".
    output = f"{folder}/{module.name if len(commands) == 1 else ''}"
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    settings = [f"-X {name}={value}" for name, value in _variables().items()]  # a module without the name ignores it
    done = subprocess.run(
        [*command, f"-ldflags={' '.join(['-s -w', *settings])}", "-o", output, "tool"],
        cwd=module,
        # without cgo no C compiler is needed, and the binaries run anywhere
        env=os.environ | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ClusterError(f"{module.name} did not build; the compiler's last words:\n{done.stderr[-2000:]}")
    (folder / f".{module.name}").touch()
