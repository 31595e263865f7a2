"""A node of the cluster: its containerd, its kubelet, and the images that it has.

All nodes are in one sandbox, with one network and one file system. Each has its own containers, images and cgroups. It
writes its configuration below the sandbox's folder, and creates its cgroup in those of the sandbox.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from hack.cluster import build, engine
from hack.cluster.paths import KUBECONFIG
from hack.cluster.sandbox import Sandbox

PORT = 16443
"""Of the API server. Not the default 6443, which another Kubernetes on this machine may use."""
SANDBOX = Sandbox("kubernetes", overlays=("/etc", "/opt", "/var/lib", "/var/log"), port=PORT)
KEYS = SANDBOX.folder / "keys"
CONFIGURATION = SANDBOX.folder / "configuration"
NETWORK = CONFIGURATION / "cni"
DNS_SERVICE = "10.96.0.10"
PAUSE_IMAGE = "distributed-tensorflow/pause:1"
TAINT = "distributed-tensorflow/second-node"
"""The taint of every node but the first: only pods that tolerate it run there."""
_FROM_ENGINE = "distributed-tensorflow/image"


@dataclass(frozen=True)
class Node:
    """A node, identified by its number. Its only state is that of its programs."""

    number: int

    @property
    def name(self) -> str:
        """The name of the node, such as `node-0`."""
        return f"node-{self.number}"

    @property
    def containerd(self) -> str:
        """The name of the container runtime's program."""
        return f"containerd{self.suffix}"

    @property
    def kubelet(self) -> str:
        """The name of the kubelet's program."""
        return f"kubelet{self.suffix}"

    @property
    def suffix(self) -> str:
        """What distinguishes the names of its programs from those of the first node."""
        return f"-{self.number}" if self.number else ""

    @property
    def socket(self) -> str:
        """The address of the container runtime."""
        return f"/run/{self.containerd}/containerd.sock"

    @property
    def _cgroup(self) -> str:
        return f"{SANDBOX.cgroup}/{self.name}" if self.number else SANDBOX.cgroup

    def commands(self) -> dict[str, list[str]]:
        """The arguments of each program, by its name."""
        return {
            self.containerd: [f"--config={self._file('containerd.toml')}"],
            self.kubelet: [
                f"--kubeconfig={KUBECONFIG}",
                f"--config={self._file('kubelet.json')}",
                f"--hostname-override={self.name}",
                f"--root-dir={SANDBOX.folder}/{self.kubelet}",
                # Without a minimum age, garbage collection counts a container that is about to start as dead, and
                # removes its predecessor with the log and the exit code that tests read.
                "--minimum-container-ttl-duration=1m",
            ],
        }

    def _file(self, name: str) -> Path:
        return CONFIGURATION / self.name / name

    def is_configured(self) -> bool:
        """Whether it was started in this cluster."""
        return self._file("kubelet.json").exists()

    def configure(self) -> None:
        """Write the configuration of its programs, and create its cgroup."""
        (CONFIGURATION / self.name).mkdir(parents=True, exist_ok=True)
        for cgroup in SANDBOX.cgroups() if self.number else ():
            (cgroup / self.name).mkdir(exist_ok=True)
        # restrict_oom_score_adj: in many virtual machines and containers root lacks CAP_SYS_RESOURCE. Without this
        # setting pods do not start there ("can't get final child's PID from pipe").
        self._file("containerd.toml").write_text(f"""\
version = 3
root = "{SANDBOX.folder}/{self.containerd}"
state = "/run/{self.containerd}"
[grpc]
address = "{self.socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "docker.io/{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{NETWORK}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{build.binaries()}/containerd-shim-runc-v2"
""")
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{KEYS}/ca.crt"},
            },
            "registerWithTaints": [{"key": TAINT, "effect": "NoSchedule"}] if self.number else [],
            "port": 10250 + 10 * self.number,
            "healthzPort": 10248 + 10 * self.number,
            "podLogsDir": f"/var/log/pods{self.suffix}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "failCgroupV1": False,
            "failSwapOn": False,
            # A fairly full disk must neither evict pods nor remove images that no registry has. 1 % of it may be GBs.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "200Mi", "imagefs.available": "200Mi"},
            "imageGCHighThresholdPercent": 100,
        }
        self._file("kubelet.json").write_text(json.dumps(kubelet))

    def ctr(self, *words: str) -> list[str]:
        """The command line of containerd's client."""
        return [f"{build.binaries()}/ctr", f"--address={self.socket}", "--namespace=k8s.io", *words]

    def load(self, image: str) -> None:
        """Copy an image from the Docker engine to the node, unless the node has it.

        Raises:
            UsageError: the engine does not have the image.
            ClusterError: containerd cannot import it.
        """
        name = image if "." in image.split("/")[0] else f"docker.io/{'' if '/' in image else 'library/'}{image}"
        label = f"{_FROM_ENGINE}={engine.identity(image)}"  # containerd and Docker use different digests
        if label in SANDBOX.run(self.ctr("images", "list", f"name=={name}")):
            return
        with engine.saving(image) as save:
            SANDBOX.run(self.ctr("images", "import", "-"), stdin=save.stdout)
        SANDBOX.run(self.ctr("images", "label", name, label))


FIRST, SECOND = Node(0), Node(1)
