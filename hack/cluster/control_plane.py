"""The options that these programs have in every cluster here; `kubernetes` and `simulation` add their own."""

from pathlib import Path

GANGS = "--feature-gates=GenericWorkload=true"
"""For `scheduling.gang: workload`; Kubernetes 1.37 has it off by default."""


def etcd(folder: Path) -> list[str]:
    """Those of etcd, whose data is in this folder. A throw-away cluster need not survive a power failure."""
    return ["--data-dir", f"{folder}/etcd", "--unsafe-no-fsync"]


def api_server(keys: Path, port: int, address: str, services: str) -> list[str]:
    """Those of an API server with the keys of `certificates`, at this port and address, for this range of services."""
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        f"--secure-port={port}",
        f"--advertise-address={address}",
        f"--service-cluster-ip-range={services}",
        "--authorization-mode=Node,RBAC",
        f"--client-ca-file={keys}/ca.crt",
        f"--tls-cert-file={keys}/api.crt",
        f"--tls-private-key-file={keys}/api.key",
        "--kubelet-preferred-address-types=InternalIP",  # nothing resolves a node's name
        f"--service-account-key-file={keys}/accounts.pub",
        f"--service-account-signing-key-file={keys}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        GANGS,
        "--runtime-config=scheduling.k8s.io/v1beta1=true",
    ]


def controllers(keys: Path) -> list[str]:
    """Those of the controllers."""
    return [
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={keys}/accounts.key",
        f"--root-ca-file={keys}/ca.crt",
    ]


def scheduler() -> list[str]:
    """Those of the scheduler."""
    return ["--leader-elect=false", GANGS]
