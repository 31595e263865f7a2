"""`make release`: images, chart, wheel and sdist of a version, pushed to a registry, with checksums and signatures.

It writes to dist/VERSION, to Docker's images and to the registry. Its commit, "Release VERSION", is on no branch:
the last lines say how to tag it.
"""

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.release import chart, wheel
from hack.release.base import base_image, by_digest, repo_digests
from hack.release.chart import Signer, run
from hack.release.tree import CHART, ROOT, ReleaseError, git, notes, tree

IMAGES = ("distributed-tensorflow/supervisor", "distributed-tensorflow/trainer")
BILL = "/usr/share/sbom/trainer.cdx.json"
"""The bill of materials in each image."""


def main(words: Sequence[str]) -> int:
    """Make the release that `words` name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.release", description=__doc__)
    parser.add_argument("--version", required=True, help="such as 0.2.0")
    parser.add_argument("--registry", required=True, help="HOST/PATH, without oci://")
    parser.add_argument("--cosign_key", help="key with which cosign signs images and chart (its COSIGN_PASSWORD)")
    parser.add_argument("--sign_key", help="name of a key of GnuPG with which helm signs the chart")
    parser.add_argument("--keyring", type=Path, help="file of secret keys with --sign_key")
    arguments = parser.parse_args(words)
    try:
        release(arguments)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


def release(arguments: argparse.Namespace) -> None:
    """Make a release.

    Raises:
        ReleaseError: it is not possible.
    """
    version, registry = arguments.version, arguments.registry.removeprefix("oci://").rstrip("/")
    if bool(arguments.sign_key) != bool(arguments.keyring):
        raise ReleaseError("SIGN_KEY and KEYRING: one was given without the other; give both, or none.")
    if arguments.cosign_key and shutil.which("cosign") is None:
        raise ReleaseError("COSIGN_KEY was given, but cosign is not on PATH.")
    to = ROOT / "dist" / version
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with tree(version) as source:
        commit = git("rev-parse", "HEAD", at=source)
        base = base_image(source)
        digests = _push_images(source, version, base, registry, to)
        signer = Signer(arguments.sign_key, arguments.keyring) if arguments.sign_key else None
        packaged = chart.package(source, registry, digests, to, signer)
        pushed = chart.push(packaged, registry)
        wheel.build(source, packaged, to)
        (to / "notes.md").write_text(f"{notes(source, version)}\nBase image of the images: `{base}`.\n")
    if arguments.cosign_key:
        _sign(arguments.cosign_key, registry, digests, pushed, to)
    _write_checksums(to)
    _print_summary(version, registry, pushed, commit, to)
    if not arguments.cosign_key:
        print("not signed by cosign, as COSIGN_KEY is not set")
    if not signer:
        print("the chart has no provenance file, as SIGN_KEY is not set")
    print(f"images for {platform.machine()} alone: this builds for the machine on which it runs")


def _push_images(source: Path, version: str, base: str, registry: str, to: Path) -> dict[str, str]:
    """Build the images, push them, and write their bills of materials; return their digests by REPOSITORY:TAG."""
    names = [f"{image}:{version}" for image in IMAGES]
    _make(source, "build-images", f"VERSION={version}", f"BASE_IMAGE={base}")
    _make(source, "push-images", f"VERSION={version}", f"IMAGES={' '.join(names)}", f"REGISTRY={registry}")
    digests = {}
    for name in names:
        pushed = f"{registry}/{name}"
        address = by_digest(pushed, repo_digests(pushed))
        if not address:
            raise ReleaseError(f"{pushed} has no digest, though it was pushed.")
        digests[name] = address.partition("@")[2]
        content = run("docker", "run", "--rm", "--entrypoint", "cat", pushed, BILL)
        (to / _bill_of(name)).write_text(content)
    return digests


def _make(source: Path, *words: str) -> None:
    if subprocess.run(["make", "-C", str(source), *words]).returncode:
        raise ReleaseError(f"make {words[0]} failed, as its output says.")


def _bill_of(name: str) -> str:
    return f"{name.rpartition('/')[2].partition(':')[0]}.cdx.json"


def _sign(key: str, registry: str, digests: Mapping[str, str], pushed: str, to: Path) -> None:
    """Sign the images and the chart, and attest the bills of materials of the images, by cosign."""
    options = ["--yes", "--key", key, "--tlog-upload=false"]
    options += ["--allow-http-registry"] if chart.is_local(registry) else []
    for name, digest in digests.items():
        image = f"{registry}/{name.rpartition(':')[0]}@{digest}"
        run("cosign", "sign", *options, image)
        run("cosign", "attest", *options, "--type=cyclonedx", f"--predicate={to / _bill_of(name)}", image)
    run("cosign", "sign", *options, pushed)


def _write_checksums(to: Path) -> None:
    files = sorted(path for path in to.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (to / "SHA256SUMS").write_text("".join(lines))


def _print_summary(version: str, registry: str, pushed: str, commit: str, to: Path) -> None:
    print(f"\nreleased {version}: {pushed}, and in {to.relative_to(ROOT)}:")
    for path in sorted(to.iterdir()):
        print(f"  {path.name}  {path.stat().st_size:,} bytes")
    plain = " --plain-http" if chart.is_local(registry) else ""
    print(
        f"\nnext:\n  helm install mnist oci://{registry}/{Path(CHART).name} --version {version}{plain}\n"
        f"  git tag v{version} {commit} && git push origin v{version}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
