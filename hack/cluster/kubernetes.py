"""Kubernetes: its programs, how each starts, and when each is ready.

The commands `up`, `load`, `add-node`, `status` and `down` use it. Everything runs in one sandbox. Outside of it they
use one port of 127.0.0.1 for the API server, and write KUBECONFIG.
"""

import json
import subprocess
from collections.abc import Callable, Sequence

from hack.cluster import build, certificates, control_plane, engine
from hack.cluster.errors import ClusterError
from hack.cluster.node import CONFIGURATION, DNS_SERVICE, FIRST, KEYS, NETWORK, PAUSE_IMAGE, PORT, SANDBOX, SECOND, Node
from hack.cluster.paths import KUBECONFIG, MANIFESTS
from hack.cluster.progress import step
from hack.cluster.sandbox import ADDRESS, INTERFACE, MTU, tail
from hack.cluster.waiting import until

PODS = "10.244.0.0/16"
POD_NETWORK = "podnet"
"""The interface whose macvlans the pods have. Its other end receives what is for no pod, and drops it."""
NODE_INTERFACE = "pods"
GATEWAY = "10.244.0.1"
"""The node's interface and address on the pod network."""
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"

STORAGE_NAMESPACE = "local-path-storage"
READY_SECONDS = 180
"""How long a program may take to be ready. A kubelet whose API server was away for a minute takes a minute."""

_ASK_COREDNS = f"exec 3<>/dev/tcp/{ADDRESS}/8181; printf 'GET /ready HTTP/1.0\\r\\n\\r\\n' >&3; grep -q OK <&3"


def _commands() -> dict[str, list[str]]:
    """The command line of each program on the node, by name."""
    configured = [f"--kubeconfig={KUBECONFIG}"]
    return {
        "etcd": control_plane.etcd(SANDBOX.folder),
        "kube-apiserver": [
            *control_plane.api_server(KEYS, PORT, ADDRESS, SERVICES),
            "--allow-privileged",
            f"--kubelet-client-certificate={KEYS}/admin.crt",
            f"--kubelet-client-key={KEYS}/admin.key",
        ],
        **FIRST.commands(),
        "kube-controller-manager": [*configured, *control_plane.controllers(KEYS)],
        "kube-scheduler": [*configured, *control_plane.scheduler()],
        "kube-proxy": [
            *configured,
            f"--hostname-override={FIRST.name}",
            f"--cluster-cidr={PODS}",
            "--proxy-mode=iptables",
            "--masquerade-all",  # otherwise pods reply to each other directly, bypassing the Service
            "--conntrack-max-per-core=0",  # the limit applies to the whole machine, and a sandbox must not change it
        ],
        "coredns": ["-conf", f"{CONFIGURATION}/Corefile"],
        "local-path-provisioner": [
            "start",
            *configured,
            "--provisioner-name=rancher.io/local-path",
            f"--namespace={STORAGE_NAMESPACE}",
            "--configmap-name=local-path-config",
            "--service-account-name=local-path-provisioner",
            f"--helper-image=docker.io/library/{engine.BASE_IMAGE}",
        ],
    }


def _write_configuration() -> None:
    NETWORK.mkdir(parents=True, exist_ok=True)
    FIRST.configure()
    # macvlan joins all pods to one link, where packets between pods are nearly as fast as on the loopback interface.
    # With a bridge or routes (ptp, as in kind) packets pass the network stack again; with routes, also the firewall.
    (NETWORK / "pods.conflist").write_text(
        json.dumps(
            {
                "cniVersion": "1.0.0",
                "name": "pods",
                "plugins": [
                    {
                        "type": "macvlan",
                        "master": POD_NETWORK,
                        "mode": "bridge",
                        "ipam": {
                            "type": "host-local",
                            "subnet": PODS,
                            "gateway": GATEWAY,
                            "routes": [{"dst": "0.0.0.0/0"}],
                        },
                    },
                ],
            }
        )
    )
    # Only names of the cluster: no test may depend on external names.
    (CONFIGURATION / "Corefile").write_text(f"""\
.:53 {{
    errors
    ready {ADDRESS}:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {KUBECONFIG}
        ttl 5
    }}
    cache 5
}}
""")


def start() -> None:
    """Start every program that is not running, and wait until all are ready.

    Raises:
        ClusterError: a program does not start; the message has the end of its log.
    """
    with step("sandbox"):
        SANDBOX.start()
        if not KEYS.exists():  # a sandbox that was killed leaves KUBECONFIG
            KUBECONFIG.unlink(missing_ok=True)
        if not KUBECONFIG.exists():
            names = f"IP:127.0.0.1,IP:{ADDRESS},IP:{API_SERVICE},DNS:localhost,DNS:kubernetes.default.svc"
            certificates.create(KEYS, f"https://127.0.0.1:{PORT}", names)
        _write_configuration()
        _join_pod_network()
    # Independent programs start together. Images load while the API server starts.
    _start("etcd", "kube-apiserver", "containerd")
    _ready("containerd", lambda: _succeeds(FIRST.ctr("version")))
    _load_own_images(FIRST)
    _ready("kube-apiserver", lambda: _answers("/readyz"))
    _start("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns")
    with step("manifests"):
        _apply_manifests()
    _start("local-path-provisioner")
    _ready("kube-controller-manager", lambda: _answers("/api/v1/namespaces/default/serviceaccounts/default"))
    _ready("kubelet", node_is_ready)
    _ready("kube-proxy", lambda: _succeeds(["iptables", "-t", "nat", "-n", "-L", "KUBE-SERVICES"]))
    _ready("coredns", lambda: _succeeds(["bash", "-c", _ASK_COREDNS]))
    _ready("local-path-provisioner", lambda: True)


def _join_pod_network() -> None:
    """Connect the node to the pod network. Repeating it after an interruption is safe."""
    # Not the interface to the outside: packets for a pod that is gone would leave through it, and another host may
    # answer them.
    other_end = f"{POD_NETWORK}-end"
    sized = ["mtu", str(MTU)]
    _add_link(POD_NETWORK, [*sized, "type", "veth", "peer", "name", other_end, *sized])
    SANDBOX.run(["ip", "link", "set", other_end, "arp", "off", "up"])
    SANDBOX.run(["ip", "link", "set", POD_NETWORK, "up"])
    _add_link(NODE_INTERFACE, ["link", POD_NETWORK, "type", "macvlan", "mode", "bridge"])
    SANDBOX.run(["ip", "address", "replace", f"{GATEWAY}/{PODS.split('/')[1]}", "dev", NODE_INTERFACE])
    SANDBOX.run(["ip", "link", "set", NODE_INTERFACE, "up"])
    masquerade = ["POSTROUTING", "--source", PODS, "--out-interface", INTERFACE, "--jump", "MASQUERADE"]
    if not _succeeds(["iptables", "--table", "nat", "--check", *masquerade]):
        SANDBOX.run(["iptables", "--table", "nat", "--append", *masquerade])


def _add_link(name: str, details: Sequence[str]) -> None:
    kind = details[details.index("type") + 1]
    if not _succeeds(["ip", "link", "show", name]) and not _succeeds(["ip", "link", "add", "name", name, *details]):
        raise ClusterError(f"the kernel lacks {kind}, which the pod network uses: run `modprobe {kind}` and try again.")


def _start(*names: str) -> None:
    running = SANDBOX.programs()
    commands = _commands() | SECOND.commands()
    for name in names:
        if name not in running:
            program = name.removesuffix(SECOND.suffix)
            own = build.binaries() / program
            SANDBOX.spawn(name, own if own.exists() else program, commands[name])


def _ready(name: str, condition: Callable[[], bool]) -> None:
    with step(name):
        gone = False

        def over() -> bool:
            nonlocal gone
            gone = name not in SANDBOX.programs()
            return gone or condition()

        if not until(over, READY_SECONDS) or gone:
            how = "exited during its start" if gone else f"is not ready after {READY_SECONDS} s"
            raise ClusterError(f"{name} {how}; its log {SANDBOX.log(name)} ends:\n{tail(SANDBOX.log(name))}")


def _succeeds(command: list[str]) -> bool:
    try:
        SANDBOX.run(command)
    except ClusterError:
        return False
    return True


def kubectl(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl against this cluster.

    Raises:
        ClusterError: kubectl is not built, for example after a change of the modules.
    """
    program = build.binaries() / "kubectl"
    if not program.exists():
        raise ClusterError("this version of the modules has no binaries: `build` builds them.")
    return subprocess.run(
        [program, f"--kubeconfig={KUBECONFIG}", *arguments],
        input=text,
        capture_output=True,
        text=True,
    )


def _answers(path: str) -> bool:
    return kubectl("get", "--raw", path).returncode == 0


def node_is_ready(node: Node = FIRST) -> bool:
    """Whether a node is Ready."""
    done = kubectl("get", "node", node.name, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")
    return done.stdout == "True"


def _apply_manifests() -> None:
    text = MANIFESTS.read_text()
    for word, value in {
        "DNS_ADDRESS": DNS_SERVICE,
        "NODE_ADDRESS": ADDRESS,
        "nodeName: NODE": f"nodeName: {FIRST.name}",
        "VOLUMES": f"{SANDBOX.folder}/volumes",
        "BASE_IMAGE": f"docker.io/library/{engine.BASE_IMAGE}",
    }.items():
        text = text.replace(word, value)
    done = kubectl("apply", "--filename=-", text=text)
    if done.returncode:
        raise ClusterError(f"kubectl cannot apply {MANIFESTS.name}: {done.stderr.strip()}")


def _load_own_images(node: Node) -> None:
    loaded = SANDBOX.run(node.ctr("images", "list", "--quiet")).split()
    if f"docker.io/{PAUSE_IMAGE}" not in loaded:
        with step("pause image"):
            engine.create_image(PAUSE_IMAGE, build.binaries() / "pause")
            node.load(PAUSE_IMAGE)
            engine.docker("image", "rm", PAUSE_IMAGE)
    if f"docker.io/library/{engine.BASE_IMAGE}" not in loaded:
        with step(engine.BASE_IMAGE):
            node.load(engine.BASE_IMAGE)


def start_second_node(images: Sequence[str]) -> None:
    """Start a second node with these images of the Docker engine, unless it runs, and wait until it is Ready.

    Raises:
        UsageError: the engine does not have an image.
        ClusterError: no cluster is running, or a program does not start.
    """
    if not SANDBOX.first_process():
        raise ClusterError("no cluster is running: `up` starts one.")
    SECOND.configure()
    _start(SECOND.containerd)
    _ready(SECOND.containerd, lambda: _succeeds(SECOND.ctr("version")))
    _load_own_images(SECOND)
    for image in images:
        with step(image):
            SECOND.load(image)
    _start(SECOND.kubelet)
    _ready(SECOND.kubelet, lambda: node_is_ready(SECOND))


def state() -> dict[str, bool]:
    """Whether each program of the cluster is running, by name; those of the second node if it was ever started."""
    running = SANDBOX.programs()
    names = [*_commands(), *(SECOND.commands() if SECOND.is_configured() else ())]
    return {name: name in running for name in names}
