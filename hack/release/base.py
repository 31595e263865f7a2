"""The image on which those of a release are based, by digest where Docker has one."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hack.release.chart import run
from hack.release.tree import ReleaseError


def base_image(source: Path) -> str:
    """The base image of a tree's images: REPOSITORY@DIGEST, or REPOSITORY:TAG if Docker has no digest of it."""
    image = os.environ.get("BASE_IMAGE") or default(source)
    if "@" in image:
        return image
    try:
        pinned = by_digest(image, repo_digests(image))
    except ReleaseError:
        run("docker", "pull", "--quiet", image)
        pinned = by_digest(image, repo_digests(image))
    if not pinned:
        print(f"{image} is not pinned: Docker has no digest of it, as it was loaded and not pulled", flush=True)
    return pinned or image


def default(source: Path) -> str:
    """The base image that a tree's Dockerfile names."""
    (image,) = re.findall(r"(?m)^ARG BASE_IMAGE=(.+)$", (source / "images" / "Dockerfile").read_text())
    return str(image)


def repo_digests(image: str) -> list[str]:
    """An image's names, REPOSITORY@DIGEST, in the registries from which it was pulled or to which it was pushed."""
    return list(json.loads(run("docker", "image", "inspect", "--format", "{{json .RepoDigests}}", image)))


def by_digest(image: str, among: Sequence[str]) -> str | None:
    """The name by digest that is in the repository of REPOSITORY:TAG."""
    repository = _short(re.sub(r":[^:/]+$", "", image))
    return next((name for name in among if _short(name).startswith(f"{repository}@")), None)


def _short(name: str) -> str:
    """A name without what stands for Docker Hub, which some engines list."""
    return name.removeprefix("docker.io/").removeprefix("library/")
