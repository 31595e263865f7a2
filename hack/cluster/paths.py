"""Paths of this tool: for what it builds and for what a running cluster writes, both outside the checkout.

This module has constants only, and touches no file.
"""

import os
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distributed-tensorflow" / "cluster"
"""Binaries by version; `down` keeps them."""

STATE = CACHE / "running"
"""All files of a running cluster; `down` removes them. On a disk, because it holds images and volumes."""

KUBECONFIG = STATE / "admin.conf"

MODULES = Path(__file__).parent / "modules"
MANIFESTS = Path(__file__).parent / "manifests.yaml"

SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
"""PATH with the folders of iptables and others, which Debian leaves out of an ordinary user's PATH."""
