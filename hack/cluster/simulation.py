"""Kubernetes with simulated nodes: the real API server, controllers, scheduler and DNS, and kwok instead of kubelets.

The pods of simulated nodes run nothing: they are Running as soon as they have a node. `benchmarks.scale` uses it.
Everything is in a sandbox of its own, beside that of `up`. Outside of it, a port of 127.0.0.1 reaches the API server.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.cluster import build, certificates, control_plane, packages
from hack.cluster.errors import ClusterError, UsageError
from hack.cluster.paths import CACHE
from hack.cluster.progress import step
from hack.cluster.sandbox import ADDRESS, Sandbox, tail
from hack.cluster.waiting import until

PORT = 16444
SANDBOX = Sandbox("simulation", overlays=("/etc",), port=PORT)
SERVER = f"https://127.0.0.1:{PORT}"
KEYS = SANDBOX.folder / "keys"
KUBECONFIG = SANDBOX.folder / "admin.conf"
AUDIT = SANDBOX.folder / "audit.log"
"""The requests of service accounts, one JSON object a line."""
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", "kwok", "kubectl", "helm")
PACKAGES = {name: packages.CLUSTER[name] for name in ("ip", "openssl", "slirp4netns")}
NODES = Path(__file__).parent / "simulated-nodes.yaml"
READY_SECONDS = 120


def _commands() -> dict[str, list[str]]:
    return {
        "etcd": control_plane.etcd(SANDBOX.folder),
        "kube-apiserver": [
            *control_plane.api_server(KEYS, PORT, ADDRESS, "10.96.0.0/16"),
            "--endpoint-reconciler-type=none",
            f"--audit-policy-file={SANDBOX.folder}/audit.json",
            f"--audit-log-path={AUDIT}",
        ],
        "kube-controller-manager": [
            f"--kubeconfig={KUBECONFIG}",
            *control_plane.controllers(KEYS),
            # the controllers' own limits, of 20 requests a second, would hide what the tasks cost
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--node-monitor-grace-period=30m",  # simulated nodes have no heartbeat
        ],
        "kube-scheduler": [f"--kubeconfig={KUBECONFIG}", *control_plane.scheduler()],
        "coredns": ["-conf", f"{SANDBOX.folder}/Corefile"],
        "kwok": [f"--kubeconfig={KUBECONFIG}", f"--config={NODES}", "--cidr=10.244.0.0/16"],
    }


@contextmanager
def running() -> Iterator[None]:
    """A cluster without nodes, which ends with the block.

    Raises:
        UsageError: another process runs such a cluster.
        ClusterError: a program does not start; the message has the end of its log.
    """
    packages.ensure(PACKAGES)
    build.ensure_programs(PROGRAMS)
    with (CACHE / "simulation.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("another process runs a simulated cluster: wait until it has ended.") from None
        SANDBOX.stop()  # that of a process that was killed
        try:
            with step("cluster"):
                _start()
            yield
        finally:
            SANDBOX.stop()


def _start() -> None:
    SANDBOX.start()
    certificates.create(KEYS, SERVER, f"IP:127.0.0.1,IP:{ADDRESS},DNS:localhost", KUBECONFIG)
    accounts = {"level": "Metadata", "userGroups": ["system:serviceaccounts"], "omitStages": ["RequestReceived"]}
    system = {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]}
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [system, accounts, {"level": "None"}]}
    (SANDBOX.folder / "audit.json").write_text(json.dumps(policy))
    (SANDBOX.folder / "Corefile").write_text(f"""\
.:53 {{
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {KUBECONFIG}
        ttl 5
    }}
    cache 5
}}
""")
    for name, arguments in _commands().items():
        SANDBOX.spawn(name, build.binaries() / name, arguments)
        if name == "kube-apiserver" and not until(lambda: _answers("/readyz"), READY_SECONDS):
            raise ClusterError(f"{name} is not ready after {READY_SECONDS} s; its log ends:\n{tail(SANDBOX.log(name))}")
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    if not until(lambda: _answers(account), READY_SECONDS):
        log = SANDBOX.log("kube-controller-manager")
        raise ClusterError(f"kube-controller-manager is not ready after {READY_SECONDS} s; its log ends:\n{tail(log)}")
    if missing := _commands().keys() - SANDBOX.programs():
        name = sorted(missing)[0]
        raise ClusterError(f"{name} exited during its start; its log ends:\n{tail(SANDBOX.log(name))}")


def resolve_in(namespace: str) -> None:
    """Let programs in the sandbox look up names as the pods of a namespace do."""
    domains = f"{namespace}.svc.cluster.local svc.cluster.local cluster.local"
    text = f"nameserver 127.0.0.1\nsearch {domains}\noptions ndots:5\n"
    SANDBOX.run(["sh", "-c", 'printf %s "$0" > /etc/resolv.conf', text])


def kubectl(*arguments: str) -> str:
    """Run kubectl in the sandbox.

    Raises:
        ClusterError: it failed.
    """
    return SANDBOX.run([build.binaries() / "kubectl", f"--kubeconfig={KUBECONFIG}", *arguments])


def helm(*arguments: str) -> str:
    """Run Helm in the sandbox.

    Raises:
        ClusterError: it failed.
    """
    return SANDBOX.run([build.binaries() / "helm", f"--kubeconfig={KUBECONFIG}", *arguments])


def _answers(path: str) -> bool:
    try:
        kubectl("get", "--raw", path)
    except ClusterError:
        return False
    return True
