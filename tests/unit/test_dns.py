"""Whether the host names of tasks resolve, with a resolver that knows some names."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from tests.unit.test_supervision import NEVER, a_pod, a_run
from trainer.supervisor import dns
from trainer.supervisor.dns import DnsProbe
from trainer.supervisor.run import Role

TASKS = [("mnist-worker-0", "worker"), ("mnist-ps-0", "ps")]
PODS = [a_pod(name) for name, _ in TASKS]
SECONDS = 30.0


class Resolver:
    """Knows the names in `known`, and counts how often it was asked for each."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, port: None) -> None:
        """Raise OSError unless the name is known."""
        self.asked.append(host)
        if host not in self.known:
            raise OSError("Name or service not known")


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """The resolver of the module."""
    found = Resolver()
    monkeypatch.setattr(dns, "socket", SimpleNamespace(getaddrinfo=found.getaddrinfo))
    monkeypatch.setattr(dns, "LOOKUP_INTERVAL", 0.0)
    monkeypatch.setattr(dns, "GRACE_SECONDS", 0.0)
    return found


def have_resolved(probe: DnsProbe, tasks: Sequence[tuple[str, str]]) -> bool:
    return {name for name, _ in tasks} <= probe._resolved


def look_up_until(probe: DnsProbe, condition: Callable[[], bool]) -> None:
    """Look up both tasks until the condition is true."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        probe.look_up(PODS)
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_name_is_looked_up_until_it_resolves(resolver: Resolver) -> None:
    resolver.known = {"mnist-worker-0.mnist-worker"}
    probe = DnsProbe(a_run())
    look_up_until(
        probe, lambda: resolver.asked.count("mnist-ps-0.mnist-ps") >= 3 and set(probe.unresolved()) == {"mnist-ps-0"}
    )
    assert probe.unresolved()["mnist-ps-0"].host == "mnist-ps-0.mnist-ps"
    assert have_resolved(probe, TASKS[:1])
    resolver.known.add("mnist-ps-0.mnist-ps")
    look_up_until(probe, lambda: have_resolved(probe, TASKS))
    assert probe.unresolved() == {}


def test_a_name_that_has_resolved_is_not_looked_up_again(resolver: Resolver) -> None:
    resolver.known = {"mnist-worker-0.mnist-worker", "mnist-ps-0.mnist-ps"}
    probe = DnsProbe(a_run())
    look_up_until(probe, lambda: have_resolved(probe, TASKS))
    asked = len(resolver.asked)
    probe.look_up(PODS)
    assert len(resolver.asked) == asked


def test_a_name_is_not_looked_up_before_the_dns_can_know_it(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand names, most lookups at the moment of the start are in vain, and each is several queries."""
    monkeypatch.setattr(dns, "LOOKUP_INTERVAL", 600.0)
    probe = DnsProbe(a_run())
    probe.look_up(PODS)
    monkeypatch.setattr(dns, "LOOKUP_INTERVAL", 0.0)
    late = a_pod("mnist-worker-1")
    resolver.known = {"mnist-worker-1.mnist-worker"}
    deadline = time.monotonic() + SECONDS
    while not have_resolved(probe, [(late.name, late.role)]):
        probe.look_up([*PODS, late])
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert resolver.asked == ["mnist-worker-1.mnist-worker"]


def test_a_name_is_not_unresolved_before_the_grace_period_is_over(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "GRACE_SECONDS", 600.0)
    probe = DnsProbe(a_run())
    look_up_until(probe, lambda: "mnist-ps-0.mnist-ps" in resolver.asked)
    assert probe.unresolved() == {}


def test_tasks_that_do_not_run_and_clients_are_not_looked_up(resolver: Resolver) -> None:
    roles = {"client": Role(replicas=1, exits=NEVER, job="mnist-client-1")}
    probe = DnsProbe(a_run(roles={**a_run().roles, **roles}))
    probe.look_up([a_pod("mnist-client-0"), a_pod("mnist-ps-0", running=False)])
    assert probe.unresolved() == {}
    assert resolver.asked == []
