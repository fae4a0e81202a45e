"""Classifies pictures of digits by Lightning's Trainer. Needs `lightning`.

antdt run --nproc-per-node 2 --data samples:4000 --epochs 4 --global-batch-size 64 lightning_digits.py --epochs 4
"""

import argparse
from typing import List

import torch
from ddp_antdt import SAMPLES, TEST_SAMPLES, digits, network
from lightning.pytorch import LightningModule, Trainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import antdt
from antdt.lightning import Strategy


class Classifier(LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.network, self.lr = network(), lr

    def training_step(self, batch: List[torch.Tensor]) -> torch.Tensor:
        pictures, labels = batch
        return cross_entropy(self.network(pictures), labels)

    def validation_step(self, batch: List[torch.Tensor]) -> None:
        pictures, labels = batch
        self.log("accuracy", self.network(pictures).argmax(1).eq(labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    options = parser.parse_args()

    torch.manual_seed(0)
    antdt.init()
    data, test = digits(options.samples, seed=1), digits(TEST_SAMPLES, seed=2)
    trainer = Trainer(
        accelerator="cpu", strategy=Strategy(), max_epochs=options.epochs, logger=False, enable_checkpointing=False
    )
    module, shown = Classifier(options.lr), DataLoader(test, batch_size=len(test))
    before = trainer.validate(module, shown, verbose=False)[0]["accuracy"]
    trainer.fit(module, DataLoader(data, batch_sampler=antdt.BatchSampler(data)), shown)
    after = trainer.validate(module, shown, verbose=False)[0]["accuracy"]
    if trainer.is_global_zero:
        print(f"accuracy {before:.3f} -> {after:.3f}")


if __name__ == "__main__":
    main()
