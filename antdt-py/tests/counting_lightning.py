"""Counts the samples of Lightning's Trainer."""

import os

import torch
from counted import EPOCHS, FOLDER, RANK, SAMPLES, STOPS, Counting, started, stepped, write
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

import antdt
from antdt.lightning import Strategy


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.counting = Counting()
        self.validated = []

    def training_step(self, samples):
        return self.counting(samples)

    def on_before_optimizer_step(self, optimizer):
        self.counting.count()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        stepped(self.trainer.global_step)
        self.trainer.should_stop |= self.trainer.global_step == STOPS

    def validation_step(self, samples):
        self.validated.append(self.trainer.current_epoch)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


antdt.init()
started()
module, out = Module(), os.path.join(FOLDER, f"out-{RANK}")
trainer = Trainer(
    accelerator="cpu",
    strategy=Strategy(),
    max_epochs=EPOCHS,
    default_root_dir=out,
    gradient_clip_val=100.0,
    num_sanity_val_steps=0,
    enable_progress_bar=False,
)
loader = DataLoader(range(SAMPLES), batch_sampler=antdt.BatchSampler(range(SAMPLES)))
trainer.fit(module, loader, DataLoader(range(10), batch_size=10))
scheduled = trainer.lr_scheduler_configs[0].scheduler.last_epoch
write(
    module.counting,
    out,
    steps=trainer.global_step,
    scheduled=scheduled,
    validated=module.validated,
)
