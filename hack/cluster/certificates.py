"""The cluster's certificate authority, its two certificates and the administrator's kubeconfig.

`kubernetes` and `simulation` call it once per cluster. It writes to the given folder and to the kubeconfig.
"""

import base64
import json
import subprocess
from pathlib import Path

from hack.cluster.errors import ClusterError
from hack.cluster.paths import KUBECONFIG


def create(folder: Path, server: str, names: str, kubeconfig: Path = KUBECONFIG) -> None:
    """Create all of them, for an API server at URL `server` with subject alternative names `names`.

    Raises:
        ClusterError: openssl failed.
    """
    folder.mkdir(exist_ok=True)
    _openssl(folder, "genpkey -algorithm RSA -out accounts.key")
    _openssl(folder, "pkey -in accounts.key -pubout -out accounts.pub")
    _openssl(folder, "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 365 -subj /CN=throw-away")
    _certificate(folder, "api", "/CN=kube-apiserver", names)
    _certificate(folder, "admin", "/O=system:masters/CN=admin", "DNS:admin")
    written = folder / KUBECONFIG.name
    written.write_text(json.dumps(_kubeconfig(folder, server), indent=1))
    written.chmod(0o600)
    written.rename(kubeconfig)  # last: if it exists, all the others exist


def _certificate(folder: Path, name: str, subject: str, names: str) -> None:
    _openssl(folder, f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj {subject}")
    extensions = folder / f"{name}.extensions"
    extensions.write_text(f"subjectAltName={names}\n")
    _openssl(
        folder,
        f"x509 -req -in {name}.csr -out {name}.crt -days 365 -CA ca.crt -CAkey ca.key -CAcreateserial "
        f"-extfile {extensions.name}",
    )


def _openssl(folder: Path, arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments.split()], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"openssl {arguments.split()[0]} failed:\n{done.stderr[-1000:]}")


def _kubeconfig(folder: Path, server: str) -> dict[str, object]:
    def content(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    name = "throw-away"
    user = {"client-certificate-data": content("admin.crt"), "client-key-data": content("admin.key")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": content("ca.crt")}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
