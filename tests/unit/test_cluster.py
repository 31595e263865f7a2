"""Parsing the cluster from valid and malformed TF_CONFIG, cluster files and classic flags."""

import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.cluster.spec import ALIASES, ROLES, ClassicFlags, Cluster, ClusterFile, Task, resolve
from trainer.errors import ConfigurationError
from trainer.mode import Strategy
from trainer.tensorflow import tf

NO_FLAGS = ClassicFlags()
CLUSTER = {"worker": ["w0:1", "w1:1"], "ps": ["p0:1"]}


def tf_config(cluster: Any, role: str = "worker", index: Any = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"})


def parse(text: str) -> Cluster:
    found, conflicts = resolve(text, NO_FLAGS)
    assert found is not None
    assert conflicts == []
    return found


addresses = st.builds(
    "{}:{}".format,
    st.from_regex(r"[a-z][a-z0-9.-]{0,30}", fullmatch=True) | st.ip_addresses(v=4).map(str) | st.just("[::1]"),
    st.integers(1, 65535),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any valid cluster, seen from any of its tasks."""
    chiefs, workers, ps = draw(st.integers(0, 1)), draw(st.integers(0, 4)), draw(st.integers(1, 3))
    workers = workers or 1 - chiefs
    hosts = draw(st.lists(addresses, min_size=chiefs + workers + ps, max_size=chiefs + workers + ps, unique=True))
    chief, worker = tuple(hosts[:chiefs]), tuple(hosts[chiefs : chiefs + workers])
    tasks = [Task("chief", 0)] * chiefs + [Task("worker", index) for index in range(workers)]
    tasks += [Task("ps", index) for index in range(ps)] + [Task("evaluator", draw(st.integers(0, 5)))]
    return Cluster(draw(st.sampled_from(tasks)), chief, worker, tuple(hosts[chiefs + workers :]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
roles = st.sampled_from([*ROLES, *ALIASES])
near_misses = st.fixed_dictionaries(
    {},
    optional={
        "cluster": json_values
        | st.dictionaries(roles | st.text(), json_values | st.lists(addresses | st.text(), max_size=3), max_size=4),
        "task": json_values
        | st.fixed_dictionaries(
            {}, optional={"type": roles | json_values, "index": st.integers(-2, 3) | st.text() | json_values}
        ),
    },
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A valid TF_CONFIG with a piece cut out."""
    text = draw(clusters()).to_tf_config()
    start = draw(st.integers(0, len(text)))
    return text[:start] + text[start + draw(st.integers(1, 20)) :]


garbage = st.text() | (json_values | near_misses).map(json.dumps) | damaged()


def resolve_or_complain_in_one_line(
    text: str | None, flags: ClassicFlags, file: ClusterFile | None = None
) -> tuple[Cluster | None, list[str]]:
    """Return the result of `resolve`, or no cluster on a ConfigurationError; any other exception fails the test."""
    try:
        return resolve(text, flags, file)
    except ConfigurationError as error:
        probe_error = str(error)
    assert len(probe_error.splitlines()) == 1
    return None, []


@given(garbage)
@example("[" * 100_000)
@example("NaN")
def test_any_tf_config_gives_a_cluster_none_or_a_one_line_error(text: str) -> None:
    found, conflicts = resolve_or_complain_in_one_line(text, NO_FLAGS)
    assert conflicts == []
    if found and found.task.role != "evaluator":
        assert found.chief_task in found.replicas
        assert found.is_chief == (found.task == found.chief_task)
        assert found.address(found.task) in found.spec[found.task.role]
        assert found.parameter_servers


@given(st.none() | garbage, *[st.none() | st.text() | addresses] * 2, st.none() | roles | st.text(), st.integers())
def test_any_flags_give_a_cluster_none_or_a_one_line_error(
    text: str | None, ps: str | None, workers: str | None, role: str | None, index: int
) -> None:
    _, conflicts = resolve_or_complain_in_one_line(text, ClassicFlags(ps, workers, role, index))
    assert all(len(conflict.splitlines()) == 1 for conflict in conflicts)


def test_a_number_too_long_for_python_is_one_line_too() -> None:
    with pytest.raises(ConfigurationError, match="TF_CONFIG"):
        resolve("1" * 5000, NO_FLAGS)


@given(clusters())
def test_every_cluster_is_read_back_from_its_own_tf_config(cluster: Cluster) -> None:
    assert parse(cluster.to_tf_config()) == cluster


@given(clusters(), st.booleans())
def test_tensorflow_resolves_the_same_cluster(cluster: Cluster, index_as_text: bool) -> None:
    index: Any = str(cluster.task.index) if index_as_text else cluster.task.index
    text = tf_config(cluster.spec, cluster.task.role, index)
    ours = parse(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", text)
        theirs = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        assert ours.spec == theirs.cluster_spec().as_dict()
        assert ours.task.role == theirs.task_type
        assert ours.task.index == theirs.task_id


@given(clusters().filter(lambda cluster: cluster.chief), addresses.map("evaluator.".__add__))
def test_tfjob_roles_are_dropped_or_renamed(cluster: Cluster, evaluator: str) -> None:
    spec = {"master": list(cluster.chief), "evaluator": [evaluator], **cluster.spec}
    del spec["chief"]
    role = "master" if cluster.task.role == "chief" else cluster.task.role
    assert parse(tf_config(spec, role, cluster.task.index)) == cluster


@pytest.mark.parametrize("role", ["chief", "master"])
def test_master_is_another_name_of_the_chief(role: str) -> None:
    found = parse(tf_config({role: ["c:1"], **CLUSTER}, role))
    assert found.task == Task("chief", 0)
    assert found.is_chief
    assert found.spec == {"chief": ["c:1"], **CLUSTER}


def test_without_a_chief_worker_0_is_the_chief() -> None:
    first, second = parse(tf_config(CLUSTER, "worker", 0)), parse(tf_config(CLUSTER, "worker", 1))
    assert (first.is_chief, second.is_chief) == (True, False)
    assert (first.replica_index, second.replica_index) == (0, 1)
    assert first.chief_task == second.chief_task == Task("worker", 0)


def test_the_chief_is_the_first_replica_and_worker_0_the_second() -> None:
    found = parse(tf_config({"chief": ["c:1"], **CLUSTER}, "worker", 0))
    assert not found.is_chief
    assert found.replica_index == 1
    assert found.replicas == (Task("chief", 0), Task("worker", 0), Task("worker", 1))


@pytest.mark.parametrize("role", ["ps", "evaluator"])
def test_a_task_that_computes_no_gradients_is_not_a_replica(role: str) -> None:
    found = parse(tf_config(CLUSTER, role))
    assert not found.is_chief
    with pytest.raises(ValueError, match="not in tuple"):
        _ = found.replica_index


def test_a_task_has_a_name_for_people_for_files_and_for_tensorflow() -> None:
    task = Task("worker", 3)
    assert (str(task), task.slug, task.device) == ("worker 3", "worker-3", "/job:worker/task:3")


def test_an_evaluator_may_be_listed_or_not() -> None:
    listed = parse(tf_config({"evaluator": ["e:1"], **CLUSTER}, "evaluator"))
    assert listed == parse(tf_config(CLUSTER, "evaluator"))
    assert listed.spec == CLUSTER


@pytest.mark.parametrize("text", [None, "", "  \n", "{}", '{"environment": "cloud"}', '{"cluster": {}, "task": {}}'])
def test_without_a_cluster_resolve_returns_none(text: str | None) -> None:
    assert resolve(text, NO_FLAGS) == (None, [])
    with pytest.raises(ConfigurationError, match="strategy: allreduce needs a cluster of workers, but none is given"):
        resolve(text, NO_FLAGS, strategy="allreduce")


MALFORMED = {
    "not JSON": ("{cluster: worker-0}", "not JSON"),
    "cut off": ('{"cluster":', "not JSON"),
    "a list": ('["worker"]', "JSON object"),
    "a cluster that is text": (tf_config("w0:1"), "cluster must map"),
    "addresses that are text": (tf_config({**CLUSTER, "ps": "p0:1"}), "cluster.ps"),
    "an address that is a number": (tf_config({**CLUSTER, "ps": [2222]}), "cluster.ps"),
    "no task": (json.dumps({"cluster": CLUSTER}), "task.type"),
    "no task type": (json.dumps({"cluster": CLUSTER, "task": {"index": 0}}), "task.type"),
    "no task index": (json.dumps({"cluster": CLUSTER, "task": {"type": "worker"}}), "task.index"),
    "a task that is text": (json.dumps({"cluster": CLUSTER, "task": "worker"}), "task must be"),
    "an index that is a word": (tf_config(CLUSTER, "worker", "first"), "'first'"),
    "an index that is true": (tf_config(CLUSTER, "worker", True), "'true'"),
    "an index that is a fraction": (tf_config(CLUSTER, "worker", 0.5), "'0.5'"),
    "an index out of range": (tf_config(CLUSTER, "worker", 2), "worker 2.* 0 to 1"),
    "a negative index": (tf_config(CLUSTER, "worker", -1), "worker -1"),
    "a negative evaluator": (tf_config(CLUSTER, "evaluator", -1), "evaluator -1"),
    "a task of no listed role": (tf_config(CLUSTER, "chief"), "no chief is listed"),
    "an unknown role in the cluster": (tf_config({**CLUSTER, "leader": ["l:1"]}), "unknown role 'leader'"),
    "an unknown role of the task": (tf_config(CLUSTER, "leader"), "unknown role 'leader'"),
    "the same address twice in a role": (tf_config({**CLUSTER, "ps": ["p:1", "p:1"]}), "ps 0 and ps 1 .* p:1"),
    "the same address in two roles": (tf_config({**CLUSTER, "ps": ["w1:1"]}), "worker 1 and ps 0 .* w1:1"),
    "no ps": (tf_config({"worker": ["w0:1", "w1:1"]}), "no ps, but with strategy ps"),
    "an empty list of ps": (tf_config({**CLUSTER, "ps": []}), "no ps, but with strategy ps"),
    "no replica": (tf_config({"ps": ["p0:1"]}, "ps"), "no worker and no chief"),
    "two chiefs": (tf_config({**CLUSTER, "chief": ["c0:1", "c1:1"]}, "chief"), "one chief, 2 are listed"),
    "chief and master": (tf_config({**CLUSTER, "chief": ["c:1"], "master": ["m:1"]}), "both chief and master"),
    "an empty host": (tf_config({**CLUSTER, "ps": [":2222"]}), "cluster.ps.*':2222' has no host"),
    "an empty address": (tf_config({**CLUSTER, "ps": [""]}), "cluster.ps.*'' has no host"),
    "a URL": (tf_config({**CLUSTER, "ps": ["grpc://p0:1"]}), "cluster.ps.*'grpc://p0:1' has no host"),
    "a line break in a host": (tf_config({**CLUSTER, "ps": ["p\n0:1"]}), r"cluster.ps.*'p\\n0:1'"),
    "no port": (tf_config({**CLUSTER, "ps": ["p0"]}), "cluster.ps.*'p0' has no port; "),
    "an empty port": (tf_config({**CLUSTER, "ps": ["p0:"]}), "cluster.ps.*'p0:' has no port"),
    "port 0": (tf_config({**CLUSTER, "ps": ["p0:0"]}), "cluster.ps.*'p0:0' has no port"),
    "a port too large": (tf_config({**CLUSTER, "ps": ["p0:65536"]}), "cluster.ps.*'p0:65536' has no port"),
    "a port in other digits": (tf_config({**CLUSTER, "ps": ["p0:٢٢"]}), "cluster.ps"),
}


@pytest.mark.parametrize(("text", "culprit"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_tf_config_is_one_line_that_names_the_culprit(text: str, culprit: str) -> None:
    with pytest.raises(ConfigurationError, match=culprit) as caught:
        resolve(text, NO_FLAGS)
    assert str(caught.value).startswith("TF_CONFIG")
    assert len(str(caught.value).splitlines()) == 1


def test_a_long_value_is_shortened_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve("x" * 100_000, NO_FLAGS)
    assert len(str(caught.value)) < 200


def test_the_classic_flags_alone_name_the_cluster() -> None:
    found, conflicts = resolve(None, ClassicFlags("p0:1, p1:1", "w0:1,w1:1", "worker", 1))
    assert found == Cluster(Task("worker", 1), (), ("w0:1", "w1:1"), ("p0:1", "p1:1"))
    assert conflicts == []


@pytest.mark.parametrize(
    ("flags", "culprit"),
    [
        (ClassicFlags(ps_hosts="p0:1", worker_hosts="w0:1"), "--job_name"),
        (ClassicFlags("p0:1", "w0:1", job_name="worker"), "--task_index"),
        (ClassicFlags("p0:1", "w0:1", "boss", 0), "--job_name: unknown role 'boss'"),
        (ClassicFlags("p0", "w0:1", "worker", 0), "--ps_hosts.*'p0'"),
        (ClassicFlags("p0:1", "w0:1,", "worker", 0), "--worker_hosts.*''"),
        (ClassicFlags("p0:1", "w0:1", "worker", 1), "worker 1"),
        (ClassicFlags("p0:1", None, "ps", 0), "no worker and no chief"),
        (ClassicFlags(None, "w0:1,w1:1", "worker", 0), "no ps"),
    ],
)
def test_malformed_flags_are_one_line_that_names_the_culprit(flags: ClassicFlags, culprit: str) -> None:
    with pytest.raises(ConfigurationError, match=culprit) as caught:
        resolve(None, flags)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "expected", "conflict"),
    [
        (ClassicFlags(ps_hosts="q:1"), {"ps": ("q:1",)}, "--ps_hosts wins over TF_CONFIG: q:1 instead of p0:1."),
        (
            ClassicFlags(worker_hosts="v:1,x:1"),
            {"worker": ("v:1", "x:1")},
            "--worker_hosts wins over TF_CONFIG: v:1,x:1 instead of w0:1,w1:1.",
        ),
        (
            ClassicFlags(job_name="ps"),
            {"task": Task("ps", 0)},
            "--job_name wins over TF_CONFIG: ps instead of worker.",
        ),
        (
            ClassicFlags(task_index=1),
            {"task": Task("worker", 1)},
            "--task_index wins over TF_CONFIG: 1 instead of 0.",
        ),
    ],
)
def test_a_flag_wins_over_tf_config_and_the_conflict_is_reported(
    flags: ClassicFlags, expected: dict[str, Any], conflict: str
) -> None:
    text = tf_config(CLUSTER)
    found, conflicts = resolve(text, flags)
    assert found == dataclasses.replace(parse(text), **expected)
    assert conflicts == [conflict]


def test_flags_that_equal_tf_config_are_not_a_conflict() -> None:
    found, conflicts = resolve(tf_config(CLUSTER), ClassicFlags("p0:1", "w0:1,w1:1", "worker", 0))
    assert found == parse(tf_config(CLUSTER))
    assert conflicts == []


def test_flags_may_add_what_tf_config_lacks() -> None:
    text = json.dumps({"cluster": CLUSTER})
    assert resolve(text, ClassicFlags(job_name="worker", task_index=1)) == (parse(tf_config(CLUSTER, "worker", 1)), [])


def file_of(cluster: Any) -> ClusterFile:
    return ClusterFile("/etc/cluster.json", json.dumps(cluster))


@given(clusters())
def test_every_cluster_is_read_back_from_a_file(cluster: Cluster) -> None:
    flags = ClassicFlags(job_name=cluster.task.role, task_index=cluster.task.index)
    assert resolve(None, flags, file_of(cluster.spec)) == (cluster, [])
    task = json.dumps({"task": {"type": cluster.task.role, "index": cluster.task.index}})
    assert resolve(task, NO_FLAGS, file_of(cluster.spec)) == (cluster, [])


@given(garbage, st.none() | garbage)
def test_any_file_gives_a_cluster_or_a_one_line_error(text: str, tf_config: str | None) -> None:
    flags = ClassicFlags(job_name="ps", task_index=0)
    _, conflicts = resolve_or_complain_in_one_line(tf_config, flags, ClusterFile("file", text))
    assert all(len(conflict.splitlines()) == 1 for conflict in conflicts)


def test_a_file_may_list_more_tasks_than_an_environment_variable_holds() -> None:
    workers = [f"mnist-worker-{index}.mnist-worker:2222" for index in range(5000)]
    cluster = {"ps": ["mnist-ps-0.mnist-ps:2222"], "worker": workers}
    assert len(json.dumps(cluster)) > 128 * 1024
    found, _ = resolve(None, ClassicFlags(job_name="worker", task_index=4999), file_of(cluster))
    assert found
    assert found.address(found.task) == workers[4999]


MALFORMED_FILES = {
    "empty": ("", "is not JSON"),
    "YAML": ("worker: [a:1]", "is not JSON"),
    "a list": ('["a:1"]', "must map roles"),
    "null": ("null", "must map roles"),
    "a whole TF_CONFIG": (tf_config(CLUSTER), "unknown role 'cluster'"),
    "addresses that are text": ('{"ps": "p0:1"}', "cluster.ps must be a list"),
    "an address without a port": ('{"ps": ["p0:"]}', "cluster.ps: the address 'p0:' has no port"),
    "chief and master": ('{"chief": ["c:1"], "master": ["m:1"]}', "both chief and master"),
    "an empty cluster": ("{}", "no worker is listed"),
    "too few": ('{"worker": ["w:1"], "ps": ["p:1"]}', "this task is worker 1, but the indices are 0 to 0"),
}


@pytest.mark.parametrize(("text", "culprit"), MALFORMED_FILES.values(), ids=MALFORMED_FILES)
def test_a_malformed_file_is_one_line_that_names_it_and_the_culprit(text: str, culprit: str) -> None:
    with pytest.raises(ConfigurationError, match=culprit) as caught:
        resolve(None, ClassicFlags(job_name="worker", task_index=1), ClusterFile("/etc/cluster.json", text))
    assert str(caught.value).startswith("--cluster_file: /etc/cluster.json")
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_without_a_task_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--cluster_file: /etc/cluster.json: which task .* --job_name"):
        resolve(None, NO_FLAGS, file_of(CLUSTER))


def test_flags_win_over_the_file_and_the_file_over_tf_config() -> None:
    other = {"chief": ["c:1"], "worker": ["x:1"], "ps": ["y:1"]}
    found, conflicts = resolve(tf_config(other), ClassicFlags(ps_hosts="q:1"), file_of(CLUSTER))
    assert found == Cluster(Task("worker", 0), (), ("w0:1", "w1:1"), ("q:1",))
    assert conflicts == [
        "--cluster_file wins over TF_CONFIG: the cluster of /etc/cluster.json instead of its own.",
        "--ps_hosts wins over --cluster_file: q:1 instead of p0:1.",
    ]


def test_a_file_that_equals_tf_config_is_not_a_conflict() -> None:
    assert resolve(tf_config(CLUSTER), NO_FLAGS, file_of(CLUSTER)) == (parse(tf_config(CLUSTER)), [])


WORKERS: dict[str, list[str]] = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"]}


def test_without_parameter_servers_the_chief_and_the_workers_are_the_cluster() -> None:
    cluster, _ = resolve(tf_config(WORKERS), NO_FLAGS, strategy="allreduce")
    assert cluster
    assert (cluster.spec, cluster.parameter_servers, len(cluster.replicas)) == (WORKERS, (), 3)
    by_flags, _ = resolve(None, ClassicFlags(None, "w0:1,w1:1", "worker", 1), strategy="allreduce")
    assert by_flags == Cluster(Task("worker", 1), (), ("w0:1", "w1:1"))


@pytest.mark.parametrize("cluster", [{"worker": ["w0:1"]}, {"master": ["m0:1"]}, {"worker": ["w0:1"], "ps": []}])
def test_a_replica_alone_is_a_single_process(cluster: dict[str, list[str]]) -> None:
    role = next(iter(cluster))
    assert resolve(tf_config(cluster, role), NO_FLAGS) == (None, [])


@pytest.mark.parametrize(
    ("strategy", "cluster", "said"),
    [
        ("allreduce", CLUSTER, "ps, but with strategy allreduce the workers hold the parameters"),
        ("allreduce", {"ps": ["p:1"], "worker": ["w0:1"]}, "TF_CONFIG: 1 ps, but"),
        ("ps", WORKERS, "no ps, but with strategy ps"),
    ],
)
def test_a_cluster_that_does_not_fit_the_strategy_is_refused(
    strategy: Strategy, cluster: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        resolve(tf_config(cluster), NO_FLAGS, strategy=strategy)
    assert str(caught.value).startswith("TF_CONFIG")


def test_an_evaluator_may_follow_every_run() -> None:
    for strategy in get_args(Strategy):
        cluster, _ = resolve(None, ClassicFlags(job_name="evaluator", task_index=0), strategy=strategy)
        assert cluster
        assert cluster.task == Task("evaluator", 0)
