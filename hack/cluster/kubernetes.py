"""Kubernetes: its programs, how each starts, and when each is ready.

The commands `up`, `load`, `status` and `down` use it. Everything runs in one box. Outside the box it uses one port of
127.0.0.1 for the API server, and writes KUBECONFIG.
"""

import json
import subprocess
from collections.abc import Callable, Sequence

from hack.cluster import build, certificates, engine
from hack.cluster.box import ADDRESS, INTERFACE, MTU, Box, tail
from hack.cluster.errors import ClusterError
from hack.cluster.places import KUBECONFIG, MANIFESTS
from hack.cluster.progress import step
from hack.cluster.waiting import until

PORT = 16443
"""Not the default 6443, which another Kubernetes on this machine may use."""

BOX = Box("kubernetes", overlays=("/etc", "/opt", "/var/lib", "/var/log"), port=PORT)
NODE = "node-0"
PODS = "10.244.0.0/16"
POD_NETWORK = "podnet"
"""The interface whose macvlans the pods have. Its other end receives what is for no pod, and drops it."""
NODE_INTERFACE = "pods"
GATEWAY = "10.244.0.1"
"""The node's interface and address on the pod network."""
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"

PAUSE_IMAGE = "distributed-tensorflow/pause:1"
STORAGE_NAMESPACE = "local-path-storage"
_FROM_ENGINE = "distributed-tensorflow/image"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

_ASK_COREDNS = f"exec 3<>/dev/tcp/{ADDRESS}/8181; printf 'GET /ready HTTP/1.0\\r\\n\\r\\n' >&3; grep -q OK <&3"

_KEYS = BOX.folder / "keys"
_CONFIGURATION = BOX.folder / "configuration"


def _commands() -> dict[str, list[str]]:
    """The command line of each program on the node, by name, in start order."""
    configured = [f"--kubeconfig={KUBECONFIG}"]
    return {
        # a throw-away cluster need not survive a power failure
        "etcd": ["--data-dir", f"{BOX.folder}/etcd", "--unsafe-no-fsync"],
        "kube-apiserver": [
            "--etcd-servers=http://127.0.0.1:2379",
            f"--secure-port={PORT}",
            f"--advertise-address={ADDRESS}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            f"--client-ca-file={_KEYS}/ca.crt",
            f"--tls-cert-file={_KEYS}/api.crt",
            f"--tls-private-key-file={_KEYS}/api.key",
            f"--kubelet-client-certificate={_KEYS}/admin.crt",
            f"--kubelet-client-key={_KEYS}/admin.key",
            "--kubelet-preferred-address-types=InternalIP",  # nothing resolves the node's name
            f"--service-account-key-file={_KEYS}/accounts.pub",
            f"--service-account-signing-key-file={_KEYS}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
        ],
        "containerd": [f"--config={_CONFIGURATION}/containerd.toml"],
        "kube-controller-manager": [
            *configured,
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={_KEYS}/accounts.key",
            f"--root-ca-file={_KEYS}/ca.crt",
        ],
        "kube-scheduler": [*configured, "--leader-elect=false"],
        "kubelet": [
            *configured,
            f"--config={_CONFIGURATION}/kubelet.json",
            f"--hostname-override={NODE}",
            f"--root-dir={BOX.folder}/kubelet",
            # Without a minimum age, garbage collection counts a container that is about to start as dead, and removes
            # its predecessor with the log and the exit code that tests read.
            "--minimum-container-ttl-duration=1m",
        ],
        "kube-proxy": [
            *configured,
            f"--hostname-override={NODE}",
            f"--cluster-cidr={PODS}",
            "--proxy-mode=iptables",
            "--masquerade-all",  # otherwise pods reply to each other directly, bypassing the Service
            "--conntrack-max-per-core=0",  # the limit applies to the whole machine, and a box must not change it
        ],
        "coredns": ["-conf", f"{_CONFIGURATION}/Corefile"],
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
    _CONFIGURATION.mkdir(exist_ok=True)
    (_CONFIGURATION / "cni").mkdir(exist_ok=True)
    # macvlan joins all pods to one link, where packets between pods are nearly as fast as on the loopback interface.
    # With a bridge or routes (ptp, as in kind) packets pass the network stack again; with routes, also the firewall.
    (_CONFIGURATION / "cni" / "pods.conflist").write_text(
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
    # restrict_oom_score_adj: in many virtual machines and containers root lacks CAP_SYS_RESOURCE. Without this setting
    # pods do not start there ("can't get final child's PID from pipe").
    (_CONFIGURATION / "containerd.toml").write_text(f"""\
version = 2
root = "{BOX.folder}/containerd"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/{PAUSE_IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{_CONFIGURATION}/cni"
""")
    (_CONFIGURATION / "kubelet.json").write_text(
        json.dumps(
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "authentication": {
                    "anonymous": {"enabled": False},
                    "webhook": {"enabled": True},
                    "x509": {"clientCAFile": f"{_KEYS}/ca.crt"},
                },
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{BOX.cgroup}",
                "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
                "clusterDNS": [DNS_SERVICE],
                "clusterDomain": "cluster.local",
                "failSwapOn": False,
                # A fairly full disk must neither evict pods nor remove images that no registry has.
                "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
                "imageGCHighThresholdPercent": 100,
            }
        )
    )
    # Only names of the cluster: no test may depend on external names.
    (_CONFIGURATION / "Corefile").write_text(f"""\
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
    with step("box"):
        BOX.start()
        if not KUBECONFIG.exists():
            names = f"IP:127.0.0.1,IP:{ADDRESS},IP:{API_SERVICE},DNS:localhost,DNS:kubernetes.default.svc"
            certificates.create(_KEYS, f"https://127.0.0.1:{PORT}", names)
        _write_configuration()
        _join_pod_network()
    # Independent programs start together. Images load while the API server starts.
    _start("etcd", "kube-apiserver", "containerd")
    _ready("containerd", lambda: _succeeds(["ctr", "version"]))
    _load_own_images()
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
    BOX.run(["ip", "link", "set", other_end, "arp", "off", "up"])
    BOX.run(["ip", "link", "set", POD_NETWORK, "up"])
    _add_link(NODE_INTERFACE, ["link", POD_NETWORK, "type", "macvlan", "mode", "bridge"])
    BOX.run(["ip", "address", "replace", f"{GATEWAY}/{PODS.split('/')[1]}", "dev", NODE_INTERFACE])
    BOX.run(["ip", "link", "set", NODE_INTERFACE, "up"])
    masquerade = ["POSTROUTING", "--source", PODS, "--out-interface", INTERFACE, "--jump", "MASQUERADE"]
    if not _succeeds(["iptables", "--table", "nat", "--check", *masquerade]):
        BOX.run(["iptables", "--table", "nat", "--append", *masquerade])


def _add_link(name: str, details: Sequence[str]) -> None:
    kind = details[details.index("type") + 1]
    if not _succeeds(["ip", "link", "show", name]) and not _succeeds(["ip", "link", "add", "name", name, *details]):
        raise ClusterError(f"the kernel lacks {kind}, which the pod network uses: run `modprobe {kind}` and try again.")


def _start(*names: str) -> None:
    running = BOX.programs()
    commands = _commands()
    for name in names:
        if name not in running:
            own = build.binaries() / name
            BOX.spawn(name, [own if own.exists() else name, *commands[name]])


def _ready(name: str, condition: Callable[[], bool]) -> None:
    with step(name):
        gone = False

        def over() -> bool:
            nonlocal gone
            gone = name not in BOX.programs()
            return gone or condition()

        if not until(over, 60) or gone:
            how = "exited during its start" if gone else "is not ready after 60 s"
            raise ClusterError(f"{name} {how}; its log {BOX.log(name)} ends:\n{tail(BOX.log(name))}")


def _succeeds(command: list[str]) -> bool:
    try:
        BOX.run(command)
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


def node_is_ready() -> bool:
    """Whether the node is Ready."""
    done = kubectl("get", "node", NODE, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}")
    return done.stdout == "True"


def _apply_manifests() -> None:
    text = MANIFESTS.read_text()
    for word, value in {
        "DNS_ADDRESS": DNS_SERVICE,
        "NODE_ADDRESS": ADDRESS,
        "VOLUMES": f"{BOX.folder}/volumes",
        "BASE_IMAGE": f"docker.io/library/{engine.BASE_IMAGE}",
    }.items():
        text = text.replace(word, value)
    done = kubectl("apply", "--filename=-", text=text)
    if done.returncode:
        raise ClusterError(f"kubectl cannot apply {MANIFESTS.name}: {done.stderr.strip()}")


def _load_own_images() -> None:
    loaded = BOX.run(["ctr", "--namespace=k8s.io", "images", "list", "--quiet"]).split()
    if f"docker.io/{PAUSE_IMAGE}" not in loaded:
        with step("pause image"):
            engine.create_image(PAUSE_IMAGE, build.binaries() / "pause")
            load(PAUSE_IMAGE)
            engine.docker("image", "rm", PAUSE_IMAGE)
    if f"docker.io/library/{engine.BASE_IMAGE}" not in loaded:
        with step(engine.BASE_IMAGE):
            load(engine.BASE_IMAGE)


def load(image: str) -> None:
    """Copy an image from the Docker engine to the node, unless the node has it.

    Raises:
        UsageError: the engine does not have the image.
        ClusterError: containerd cannot import it.
    """
    images = ["ctr", "--namespace=k8s.io", "images"]
    name = image if "." in image.split("/")[0] else f"docker.io/{'' if '/' in image else 'library/'}{image}"
    label = f"{_FROM_ENGINE}={engine.identity(image)}"  # containerd and Docker use different digests
    if label in BOX.run([*images, "list", f"name=={name}"]):
        return
    with engine.saving(image) as save:
        BOX.run([*images, "import", "-"], stdin=save.stdout)
    BOX.run([*images, "label", name, label])


def state() -> dict[str, bool]:
    """Whether each program of the cluster is running, by name."""
    running = BOX.programs()
    return {name: name in running for name in _commands()}
