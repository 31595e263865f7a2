"""DLRM in PyTorch: `EmbeddingBag(sparse=True)` and `DistributedDataParallel` over gloo, on CPUs.

It runs in an environment of its own, without TensorFlow, as a rank of RANK and WORLD_SIZE. Each rank has all tables.
The ranks exchange the gradients of the rows of their batches. Arrays have the names that Keras gives them.
"""

import itertools
import os
from typing import Any

import numpy as np
import torch
from torch import distributed, nn

from benchmarks.recommenders import records
from benchmarks.recommenders.progress import Progress
from benchmarks.recommenders.work import ADAGRAD_START, DEEPREC, given

DIM = 16
ROUND = 10
"""Steps after which the ranks agree whether to go on."""


class DLRM(nn.Module):  # type: ignore[misc]
    """The network of examples/models/dlrm.py."""

    def __init__(self, form: records.Form, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleDict()
        for name, size in form.sizes.items():
            self.tables[name] = nn.EmbeddingBag(size, DIM, mode="sum", sparse=True)
            nn.init.uniform_(self.tables[name].weight, -0.05, 0.05)
        vectors = 1 + len(form.sizes)
        self.bottom = self._layers([form.numbers, *bottom, DIM])
        self.top = self._layers([DIM + vectors**2, *top])
        self.last = self._layers([top[-1], 1])[0]

    @staticmethod
    def _layers(sizes: list[int]) -> Any:
        found = []
        for size, units in itertools.pairwise(sizes):
            layer = nn.Linear(size, units)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
            found += [layer, nn.ReLU()]
        return nn.Sequential(*found)

    def forward(self, inputs: dict[str, Any]) -> Any:
        """The logits of a batch."""
        of_numbers = self.bottom(inputs["numbers"])
        rows = [table(inputs[name][:, None]) for name, table in self.tables.items()]
        vectors = torch.stack([of_numbers, *rows], dim=1)
        products = torch.flatten(vectors @ vectors.transpose(1, 2), 1)
        return self.last(self.top(torch.cat([of_numbers, products], dim=1)))

    def arrays(self) -> dict[str, Any]:
        """The arrays by Keras's paths."""
        found = {f"of_{name}/embeddings": table.weight for name, table in self.tables.items()}
        layers = [each for each in (*self.bottom, *self.top, self.last) if isinstance(each, nn.Linear)]
        for number, layer in enumerate(layers):
            name = f"dense_{number}" if number else "dense"
            found |= {f"{name}/kernel": layer.weight.T, f"{name}/bias": layer.bias}
        return {name: each.detach().numpy().copy() for name, each in found.items()}


def main() -> None:
    """Train as one rank; rank 0 prints the line."""
    mine = given()
    form, work = records.read_about(mine.examples).form, mine.work
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    layers = DEEPREC if "DeepRec" in work.model else {"bottom": [32], "top": [32]}
    network = DLRM(form, layers["bottom"], layers["top"])
    trained = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.Adagrad(
        network.parameters(), work.learning_rate, initial_accumulator_value=ADAGRAD_START, eps=1e-7
    )
    loss_of, progress = nn.BCEWithLogitsLoss(), Progress(work, mine.snapshots, network.arrays)
    rows, is_late = records.read(mine.examples / records.TRAIN, form), torch.zeros(1)
    for step, batch in enumerate(records.batches(rows, work.batch_size, rank, ranks), start=1):
        inputs = {name: torch.from_numpy(np.array(each)) for name, each in form.inputs(batch).items()}
        loss = loss_of(trained(inputs), torch.from_numpy(form.targets(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = step * work.examples_per_step
        if rank == 0:
            is_late[0] = not progress.tick(done)
        if done >= work.examples:
            break
        if step % ROUND == 0:
            distributed.broadcast(is_late, 0)
            if is_late.item():
                break
    if rank == 0:
        progress.print()


if __name__ == "__main__":
    main()
