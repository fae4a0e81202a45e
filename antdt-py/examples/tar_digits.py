"""Classifies the pictures of `ddp_antdt.py` from shards of tar, which are read by processes where the samples of a batch lie.

antdt run --nproc-per-node 2 --data samples:4000 --epochs 4 --global-batch-size 64 tar_digits.py --epochs 4
"""

import argparse
import io
import os
import tarfile
import tempfile
from itertools import groupby
from typing import Iterator, List, Tuple

import torch
from ddp_antdt import SAMPLES, TEST_SAMPLES, accuracy, digits, network
from torch import nn

import antdt

#: Samples of a shard.
SHARD = 500


def write_shards(folder: str, samples: int) -> List[str]:
    """Writes shards as they are for WebDataset: a sample is `NUMBER.pts`, its points, and `NUMBER.cls`."""
    pictures, labels = digits(samples, seed=1).tensors
    paths = []
    for begin in range(0, samples, SHARD):
        paths.append(os.path.join(folder, f"digits-{begin // SHARD:04}.tar"))
        with tarfile.open(paths[-1], "w") as shard:
            for number in range(begin, min(begin + SHARD, samples)):
                for kind, data in ("pts", pictures[number].numpy().tobytes()), ("cls", b"%d" % labels[number]):
                    member = tarfile.TarInfo(f"{number:06}.{kind}")
                    member.size = len(data)
                    shard.addfile(member, io.BytesIO(data))
    return paths


class Shards:
    """The samples of tar files by number: the headers are read once, the rest where it lies."""

    def __init__(self, paths: List[str]) -> None:
        #: Path of the shard, and place and length of each member of the sample.
        self.samples: List[Tuple[str, List[Tuple[int, int]]]] = []
        for path in paths:
            with tarfile.open(path) as shard:
                for _, members in groupby(shard, key=lambda member: member.name.split(".")[0]):
                    self.samples.append((path, [(member.offset_data, member.size) for member in members]))

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, numbers: List[int]) -> Iterator[Tuple[torch.Tensor, int]]:
        """Returns the samples of these numbers, in their order. Neighbours in a batch are mostly of one shard, which is opened once."""
        for path, of_shard in groupby((self.samples[number] for number in numbers), key=lambda sample: sample[0]):
            with open(path, "rb") as shard:
                for _, members in of_shard:
                    picture, label = (self._bytes(shard, *place) for place in members)
                    yield torch.frombuffer(bytearray(picture), dtype=torch.float32).view(1, 16, 16), int(label)

    @staticmethod
    def _bytes(shard: io.BufferedReader, offset: int, size: int) -> bytes:
        shard.seek(offset)
        return shard.read(size)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--readers", type=int, default=1, help="processes of each worker that read")
    options = parser.parse_args()

    torch.manual_seed(0)
    antdt.init()
    with tempfile.TemporaryDirectory() as folder:
        shards = Shards(write_shards(folder, options.samples))
        loader = antdt.DataLoader(antdt.IterableDataset(shards.read, len(shards)), num_workers=options.readers)
        plain = network()
        model = antdt.DDP(plain)
        optimizer = antdt.wrap(torch.optim.Adam(model.parameters(), lr=options.lr))

        test = digits(TEST_SAMPLES, seed=2)
        before = accuracy(plain, test)
        for _ in range(options.epochs):
            for pictures, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(pictures), labels).backward()
                optimizer.step()
    if os.environ.get("RANK", "0") == "0":
        print(f"accuracy {before:.3f} -> {accuracy(plain, test):.3f}")


if __name__ == "__main__":
    main()
