"""`trainer plan`: its model of a step in a cluster, and its arguments."""

import json
from dataclasses import replace
from typing import Any

import pytest

from trainer import cli
from trainer.graph import large_parameters
from trainer.scale.cost_model import AVERAGED, CHUNK_BYTES, MAX_CHUNKS, MAX_MESSAGE_BYTES, Scenario, choose, predict
from trainer.shards import parameters

GIGABIT = 1e9 / 8
SCENARIO = Scenario(workers=100, parameters=100e6, link=25 * GIGABIT, step=0.3, cpus=4, synchronous=False)
both_modes = pytest.mark.parametrize("synchronous", [False, True])
WORDS = ["--workers=1000", "--gpus=4", "--parameters=100M", "--network=25", "--step=300"]


@both_modes
def test_a_step_takes_longer_with_more_workers_and_shorter_with_more_servers(synchronous: bool) -> None:
    scenario = replace(SCENARIO, synchronous=synchronous)
    seconds = [predict(replace(scenario, workers=count), 8).seconds for count in (1, 10, 100, 1000)]
    assert scenario.step < seconds[0]
    assert seconds == sorted(seconds)
    assert predict(scenario, 16).seconds < predict(scenario, 8).seconds


@both_modes
def test_the_limit_is_what_takes_the_time(synchronous: bool) -> None:
    scenario = replace(SCENARIO, synchronous=synchronous)
    assert predict(replace(scenario, link=GIGABIT), 4).limit == "parameter servers' links"
    assert predict(replace(scenario, link=1e15), 4).limit == "parameter servers' CPUs"
    assert predict(replace(scenario, link=1e15, parameters=4, workers=1), 1).limit == "workers' CPUs"
    assert "workers' links" in predict(replace(scenario, link=GIGABIT, workers=1), 1).limit or synchronous


def test_chunks_are_those_of_the_trainer() -> None:
    assert (CHUNK_BYTES, MAX_CHUNKS) == (4 * parameters.CHUNK_SIZE, parameters.MAX_CHUNKS)
    slow = replace(SCENARIO, workers=1, link=GIGABIT, step=0.04)
    seconds = [predict(replace(slow, parameters=size), 1).seconds for size in (2e6, 4.2e6)]
    assert seconds[1] < 2 * seconds[0]


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({}, 13.9),
        ({"wire": 0.5}, 24.2),
        ({"synchronous": True}, 9.6),
        ({"synchronous": True, "wire": 0.5}, 16.5),
        ({"synchronous": True, "local_steps": 8}, 19.8),
    ],
)
def test_rates_over_a_network_that_were_measured_are_predicted(settings: dict[str, Any], measured: float) -> None:
    """Those of docs/performance.md: batches/s of two workers with 10 MB, which computed 40 ms for each."""
    scenario = Scenario(workers=2, parameters=10e6, link=GIGABIT, step=0.04, cpus=1, synchronous=False)
    assert 2 / predict(replace(scenario, **settings), 2).seconds == pytest.approx(measured, rel=0.25)


def test_a_server_updates_no_faster_than_its_link_carries() -> None:
    slow = replace(SCENARIO, link=GIGABIT, workers=1000)
    rate = slow.workers / predict(slow, 1).seconds
    assert rate == pytest.approx(slow.link / slow.parameters, rel=0.01)


def test_half_the_bytes_take_what_all_take_on_a_link_of_twice_the_speed() -> None:
    assert predict(replace(SCENARIO, wire=0.5), 8) == predict(replace(SCENARIO, link=2 * SCENARIO.link), 8)


def test_the_fewest_servers_with_that_share_are_chosen() -> None:
    chosen = choose(SCENARIO, 0.95)
    best = max(predict(SCENARIO, ps).busy for ps in range(1, SCENARIO.workers + 1))
    assert chosen.busy >= 0.95 * best > predict(SCENARIO, chosen.ps - 1).busy


def test_local_steps_divide_what_a_round_costs_which_moves_two_moments_too() -> None:
    scenario = replace(SCENARIO, synchronous=True)
    larger = replace(scenario, parameters=AVERAGED * scenario.parameters)
    every, eighth = (predict(each, 8).seconds - scenario.step for each in (larger, replace(scenario, local_steps=8)))
    assert eighth == pytest.approx(every / 8)


def test_no_message_is_above_the_limit_of_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    assert MAX_MESSAGE_BYTES == large_parameters.MAX_MESSAGE_BYTES
    assert choose(replace(SCENARIO, parameters=10e9, workers=1), 0.95).ps == 2
    assert cli.main(["plan", *WORDS, "--parameters=100G", "--ps=11"]) == 2
    assert "set it to at least 12, because gRPC moves less than 2 GiB at once" in capsys.readouterr().err


def test_plan_prints_a_row_for_each_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *WORDS]) == 0
    text = capsys.readouterr().out
    assert "1,000 workers with 4 GPUs each, 100 MB of parameters, links of 25 Gbit/s, a step of 300 ms" in text
    assert "synchronous, bfloat16" in text
    assert cli.main(["plan", *WORDS, "--json", "--ps=50"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [row["ps"] for row in rows] == [50] * 5
    assert rows[0]["mode"] == "asynchronous"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers=0"], "--workers: '0' is not a number from 1 to 100,000"),
        (["--gpus=2.5"], "--gpus: '2.5' is not a number"),
        (["--parameters=100X"], "--parameters: '100X' is not a size from 4 bytes to 1,000,000G"),
        (["--parameters=0"], "--parameters: '0' is not a size"),
        (["--network=0"], "--network: '0' is not a number of Gbit/s above 0"),
        (["--step=nan"], "--step: 'nan' is not a number of milliseconds above 0"),
        (["--cpus=-1"], "--cpus: '-1' is not a number of CPUs above 0"),
        (["--ps=2000"], "--ps: 2000 parameter servers were given, for 1000 workers and 100 MB; set it to at least 1"),
        (["--bandwidth=3"], "unrecognized arguments: --bandwidth=3"),
    ],
)
def test_impossible_figures_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *WORDS, *words]) == 2
    assert message in capsys.readouterr().err
