"""Train on handwritten digits with Accelerate: accelerate launch train.py [--out FOLDER]."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from model import build_model

BATCH_SIZE = 16  # of each process and micro-batch
ACCUMULATION = 2


def load_data():
    shades, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(shades, dtype=torch.long), torch.tensor(labels))
    return DataLoader(data, BATCH_SIZE, shuffle=True, drop_last=True)


def main(out="runs", epochs=20):
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), gradient_accumulation_steps=ACCUMULATION
    )
    set_seed(0)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, data = accelerator.prepare(model, optimizer, load_data())
    for epoch in range(epochs):
        model.train()
        for shades, labels in data:
            with accelerator.accumulate(model):
                loss = model(input_ids=shades, labels=labels).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")
        accelerator.save_state(f"{out}/epoch-{epoch}")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="runs")
    parser.add_argument("--epochs", type=int, default=20)
    main(**vars(parser.parse_args()))
