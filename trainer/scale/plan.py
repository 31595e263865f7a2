"""`trainer plan`: how many parameter servers a run needs, and what limits it."""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

from trainer.config import Parser
from trainer.errors import ConfigurationError
from trainer.scale.cost_model import ERROR, Prediction, Scenario, choose, least_servers, predict

SHARE = 0.95
"""With this share of the best rate, parameter servers are enough."""
LOCAL_STEPS = 8
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


def main(words: Sequence[str]) -> int:
    """Print the table.

    Raises:
        ConfigurationError: a figure is impossible.
    """
    arguments = parser().read(words)
    least = least_servers(arguments.parameters)
    most = max(least, arguments.workers)
    if arguments.ps is not None and not least <= arguments.ps <= most:
        raise ConfigurationError(
            f"--ps: {arguments.ps} parameter servers were given, for {arguments.workers} workers and "
            f"{_figure(arguments.parameters / 1e6)} MB; set it to at least {least}, because gRPC moves less than 2 GiB "
            f"at once, and at most {most}, because no more than one for each worker are predicted."
        )
    chosen = list(_predictions(arguments))
    if arguments.json:
        print(json.dumps([{"mode": mode, **asdict(each)} for mode, each in chosen]))
        return 0
    print(_text(arguments, chosen))
    return 0


def parser() -> Parser:
    """The parser of the arguments."""
    found = Parser(
        prog="trainer plan",
        description="Predict the time of a step with parameter servers, and print how many a run needs: the fewest\n"
        f"with {SHARE:.0%} of the best rate that any number has, at most one for each worker. The prediction is by a\n"
        "model fitted to real processes on one machine; docs/sizing.md has its assumptions.",
    )
    found.add_argument("--workers", metavar="N", type=_count, required=True, help="workers, the chief included")
    found.add_argument("--gpus", metavar="N", type=_count, default=1, help="GPUs of each worker (default: 1)")
    found.add_argument(
        "--parameters",
        metavar="BYTES",
        type=_bytes,
        required=True,
        help="of the dense parameters as float32, 4 for each, such as 100M; of tables, those of the rows of a batch",
    )
    found.add_argument(
        "--network", metavar="GBIT", type=_positive("Gbit/s"), required=True, help="speed of each task's link in Gbit/s"
    )
    found.add_argument(
        "--step",
        metavar="MS",
        type=_positive("milliseconds"),
        required=True,
        help="milliseconds of a step without communication, as a single process with the same devices takes it",
    )
    found.add_argument(
        "--cpus", metavar="N", type=_positive("CPUs"), default=4.0, help="CPUs of a parameter server (default: 4)"
    )
    found.add_argument("--ps", metavar="N", type=_count, help="predict for this number of parameter servers")
    found.add_argument("--json", action="store_true", help="print JSON")
    return found


def _predictions(arguments: argparse.Namespace) -> Iterator[tuple[str, Prediction]]:
    asynchronous = Scenario(
        workers=arguments.workers,
        parameters=arguments.parameters,
        link=arguments.network * 1e9 / 8,
        step=arguments.step / 1e3,
        cpus=arguments.cpus,
        synchronous=False,
    )
    synchronous = replace(asynchronous, synchronous=True)
    modes = {
        "asynchronous": asynchronous,
        "asynchronous, bfloat16": replace(asynchronous, wire=0.5),
        "synchronous": synchronous,
        "synchronous, bfloat16": replace(synchronous, wire=0.5),
        f"synchronous, {LOCAL_STEPS} local steps": replace(synchronous, local_steps=LOCAL_STEPS),
    }
    for mode, scenario in modes.items():
        yield mode, predict(scenario, arguments.ps) if arguments.ps else choose(scenario, SHARE)


def _text(arguments: argparse.Namespace, chosen: Sequence[tuple[str, Prediction]]) -> str:
    lines = [
        f"{_several(arguments.workers, 'worker')} with {_several(arguments.gpus, 'GPU')} each, "
        f"{_figure(arguments.parameters / 1e6)} MB of "
        f"parameters, links of {arguments.network:g} Gbit/s, a step of {arguments.step:g} ms:",
        "",
        f"{'mode':28}{'ps':>7}{'step, ms':>11}{'batches/s':>12}{'computing':>11}  limited by",
    ]
    for mode, each in chosen:
        batches = arguments.workers * arguments.gpus / each.seconds
        figures = f"{each.ps:>7,}{_figure(1e3 * each.seconds):>11}{_figure(batches):>12}{each.busy:>11.0%}"
        lines.append(f"{mode:28}{figures}  {each.limit}")
    lines += ["", f"A model that was fitted to one machine: {ERROR}.", "Measure with your own program before you buy."]
    return "\n".join(lines)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100,000")
    return int(text)


def _bytes(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kMG]?)B?", text)
    size = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 4 <= size <= 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size from 4 bytes to 1,000,000G, such as 500k, 100M or 2G")
    return size


def _positive(what: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 1e-9 <= value <= 1e9:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what} above 0 and up to 1e9")
        return value

    return parse
