"""Counts the samples of Hugging Face's Trainer."""

import os

import torch
import transformers
from counted import EPOCHS, FOLDER, RANK, SAMPLES, STOPS, Counting, started, stepped, write

import antdt
from antdt.huggingface import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.counting = Counting()

    def forward(self, samples):
        return {"loss": self.counting(samples)}


class Count(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        model.counting.count()

    def on_step_end(self, args, state, control, **kwargs):
        stepped(state.global_step)
        control.should_training_stop |= state.global_step == STOPS


antdt.init()
started()
arguments = TrainingArguments(
    os.path.join(FOLDER, f"out-{RANK}"),
    num_train_epochs=EPOCHS,
    learning_rate=1.0,
    max_grad_norm=0,
    logging_steps=10,
    save_steps=10,
    report_to="none",
    use_cpu=True,
    dataloader_num_workers=int(os.environ.get("READERS", "0")),
    disable_tqdm=True,
)
model = Model()
data = [{"samples": index} for index in range(SAMPLES)]
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Count()])
trainer.train()
write(
    model.counting,
    arguments.output_dir,
    steps=trainer.state.global_step,
    scheduled=trainer.lr_scheduler.last_epoch,
)
