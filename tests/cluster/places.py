"""Where this tool keeps things: what it builds and what a running cluster writes, both outside the checkout.

Constants only, read by every other file of the tool; nothing is touched here.
"""

import os
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distributed-tensorflow" / "cluster"
"""Survives `down`: binaries by version."""

STATE = CACHE / "running"
"""All that a running cluster writes; gone after `down`. On a disk, because images and volumes lie in it."""

KUBECONFIG = STATE / "admin.conf"

MODULES = Path(__file__).parent / "modules"
MANIFESTS = Path(__file__).parent / "manifests.yaml"

SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
"""Debian keeps iptables and the like where an ordinary login's PATH does not look."""
