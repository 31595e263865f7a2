"""The chart of a release: it names the registry, and has the digests of its images."""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from hack.release.tree import CHART, ReleaseError


@dataclass(frozen=True)
class Signer:
    """A key of GnuPG with which `helm package` signs."""

    key: str
    """Its name, or a part of it."""
    keyring: Path
    """A file of secret keys."""

    @property
    def options(self) -> list[str]:
        """Those of `helm package`."""
        return ["--sign", f"--key={self.key}", f"--keyring={self.keyring}"]


def package(root: Path, registry: str, digests: Mapping[str, str], to: Path, signer: Signer | None) -> Path:
    """Package the chart of a tree; return the .tgz file. A signed one has a .prov file beside it.

    Args:
        root: The tree, which is changed.
        registry: That of the images, HOST/PATH; empty for images on the nodes.
        digests: The digests of the images, by REPOSITORY:TAG.
        to: The folder for the files.
        signer: Who signs it.
    """
    chart = root / CHART
    if registry:
        values = (chart / "values.yaml").read_text()
        values, count = re.subn(r'(?m)^(image:\n(?:  .*\n)*?  registry: )""', rf'\g<1>"{registry}"', values)
        if count != 1:
            raise ReleaseError("values.yaml has no image.registry.")
        (chart / "values.yaml").write_text(values)
    (chart / "files" / "digests.json").write_text(f"{json.dumps(dict(digests), indent=1)}\n")
    images = [
        {"name": name.rpartition("/")[2], "image": f"{registry}/{name}@{digest}"} for name, digest in digests.items()
    ]
    facts = yaml.safe_load((chart / "Chart.yaml").read_text())
    facts["annotations"]["artifacthub.io/images"] = yaml.safe_dump(images, sort_keys=False)
    (chart / "Chart.yaml").write_text(yaml.safe_dump(facts, sort_keys=False, width=10_000))
    signing = signer.options if signer else []
    done = run("helm", "package", str(chart), f"--destination={to}", *signing)
    (found,) = re.findall(r"saved it to: (.*\.tgz)", done)
    return Path(found)


def push(file: Path, registry: str) -> str:
    """Push a packaged chart, and its provenance file if there is one; return its address with the digest."""
    plain = ["--plain-http"] if is_local(registry) else []
    done = run("helm", "push", str(file), f"oci://{registry}", *plain)
    (digest,) = re.findall(r"Digest: (sha256:[0-9a-f]{64})", done)
    return f"{registry}/{Path(CHART).name}@{digest}"


def is_local(registry: str) -> bool:
    """Whether a registry is on this machine, so that it speaks HTTP."""
    return registry.partition("/")[0].partition(":")[0] in ("localhost", "127.0.0.1")


def run(*command: str) -> str:
    """Run a program, and return all that it prints.

    Raises:
        ReleaseError: it fails.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[:2])} failed: {' '.join(done.stdout.split())}")
    return done.stdout
