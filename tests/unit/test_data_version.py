"""The version of the data on which a run stays."""

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.errors import ConfigurationError, LostPeersError
from trainer.problem import data_version

CHIEF, WORKER = (Cluster(Task("worker", index), (), ("a:1", "b:1"), ("c:1",)) for index in (0, 1))


def settings(folder: Path, version: str | None, dataset: str = "lance") -> Settings:
    return Settings(
        dataset=dataset,  # type: ignore[arg-type]
        data_version=version,
        train_dir=str(folder / "run"),
        data_dir=str(folder / "t.lance"),
    )


def claim(folder: Path, content: str) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_text(content)


@pytest.mark.parametrize("cluster", [None, CHIEF, WORKER])
@pytest.mark.parametrize(
    ("wanted", "read"), [(None, "7"), ("best", "7"), ("8", "8")], ids=["the newest", "a tag", "a number"]
)
def test_a_run_that_continues_stays_on_its_version(
    tmp_path: Path, cluster: Cluster | None, wanted: str | None, read: str
) -> None:
    assert data_version.choose(settings(tmp_path, wanted), cluster) == wanted
    claim(tmp_path, json.dumps({"dataset": "lance", "dataset_version": "7"}))
    assert data_version.choose(settings(tmp_path, wanted), cluster) == read
    assert data_version.choose(settings(tmp_path, wanted, "npz"), cluster) == wanted


def test_only_the_chief_needs_the_training_directory(tmp_path: Path) -> None:
    claim(tmp_path, "{")
    assert data_version.choose(settings(tmp_path, None), WORKER) is None
    with pytest.raises(ConfigurationError, match=r"run\.json cannot be read"):
        data_version.choose(settings(tmp_path, None), CHIEF)


def test_tasks_that_start_together_read_the_newest_version_of_now(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "y": [0, 1]})
    for _ in range(2):
        lance.write_dataset(table, str(tmp_path / "t.lance"), mode="overwrite")
    lance.dataset(str(tmp_path / "t.lance")).tags.create("best", 1)
    assert data_version.fix(settings(tmp_path, None)) == "2"
    assert data_version.fix(settings(tmp_path, "best")) == "1"
    assert data_version.fix(settings(tmp_path, None, "digits")) is None
    with pytest.raises(
        ConfigurationError, match=r"t\.lance has no version 'none': it has versions 1, 2 and tag best; "
    ):
        data_version.fix(settings(tmp_path, "none"))


def test_a_replica_that_has_read_another_version_must_restart() -> None:
    run_id = json.dumps([{"dataset_version": "7"}, "run"]).encode()
    data_version.check("7", run_id)
    data_version.check(None, b"data without versions")
    with pytest.raises(LostPeersError, match="has read version 8 of the data, but the run is on version 7; restart it"):
        data_version.check("8", run_id)
