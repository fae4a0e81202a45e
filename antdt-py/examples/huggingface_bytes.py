"""Trains a small GPT-2 of Hugging Face on the bytes of a text file, by its Trainer. Needs `transformers` and `accelerate`.

antdt run --nproc-per-node 2 --data samples:1000 --epochs 4 --global-batch-size 32 huggingface_bytes.py --epochs 4
"""

import argparse
import tempfile
from typing import Dict, List

from transformers import GPT2Config, GPT2LMHeadModel

import antdt
from antdt.huggingface import Trainer, TrainingArguments


def windows(text: bytes, samples: int, length: int) -> List[Dict[str, List[int]]]:
    """Returns pieces of the text that begin at regular distances."""
    begins = [index * (len(text) - length) // samples for index in range(samples)]
    pieces = [list(text[begin : begin + length]) for begin in begins]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", default=__file__, help="file to learn")
    parser.add_argument(
        "--samples", type=int, default=1000, help="windows of an epoch: --data samples:N of `antdt run`"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--context", type=int, default=32, help="bytes of a window")
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()

    antdt.init()
    with open(options.text, "rb") as file:
        data = windows(file.read(), options.samples, options.context)
    shape = GPT2Config(
        vocab_size=256,
        n_positions=options.context,
        n_embd=64,
        n_layer=2,
        n_head=4,
        embd_pdrop=0,
        attn_pdrop=0,
        resid_pdrop=0,
    )
    shape.bos_token_id = shape.eos_token_id = 0
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=options.epochs,
            learning_rate=options.lr,
            eval_strategy="epoch",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        # Every twentieth window shows what the model has learnt.
        trainer = Trainer(GPT2LMHeadModel(shape), arguments, train_dataset=data, eval_dataset=data[::20])
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"loss {before:.3f} -> {after:.3f} nats a byte")


if __name__ == "__main__":
    main()
