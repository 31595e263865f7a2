"""Writes the image's software bill of materials: CycloneDX for the Python packages, plus the Debian packages.

The Dockerfiles run `sbom.py PYTHON FILE` with a Python that has cyclonedx-bom. It reads PYTHON's environment and dpkg's
database, and writes FILE. The output has no timestamps and no random numbers: the same packages give the same file.
"""

import json
import platform
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote


def output_of(*command: str) -> str:
    """Run a command and return its standard output."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def debian_component(name: str, version: str, architecture: str) -> dict[str, str]:
    """Convert a Debian package to a CycloneDX component."""
    release = platform.freedesktop_os_release()["VERSION_ID"]
    # Package URLs encode the + and : of Debian versions.
    url = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?arch={architecture}&distro=debian-{release}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def main(python: str, file: str) -> None:
    """Write the bill of materials of this Python's environment and of the installed Debian packages to `file`."""
    tool = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible")
    bill = json.loads(output_of(*tool, python))
    listed = output_of("dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${Architecture}\n")
    bill["components"] += [debian_component(*line.split("\t")) for line in listed.splitlines()]
    Path(file).write_text(json.dumps(bill, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
