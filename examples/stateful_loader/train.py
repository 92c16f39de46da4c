"""Train on handwritten digits; goes on in the middle of an epoch where FOLDER has a checkpoint.

python train.py [--out FOLDER] [--epochs N]
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from model import build_model

BATCH_SIZE = 64
SAVE_EVERY = 50


class ShiftedDigits(Dataset):
    """Digits, each of them moved by up to a pixel."""

    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return self.images[index].roll((down, right), dims=(1, 2)), self.labels[index]


def main(out="runs", epochs=20):
    checkpoint = Path(out) / "checkpoint.pt"
    torch.manual_seed(0)
    data = StatefulDataLoader(
        ShiftedDigits(),
        BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=1,
        snapshot_every_n_steps=SAVE_EVERY,
        persistent_workers=True,
    )
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first_epoch = step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])
        first_epoch, step = saved["epoch"], saved["step"]
    for epoch in range(first_epoch, epochs):
        for images, labels in data:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                checkpoint.parent.mkdir(parents=True, exist_ok=True)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"data": data.state_dict(), "epoch": epoch, "step": step}
                torch.save(state, checkpoint)
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="runs")
    parser.add_argument("--epochs", type=int, default=20)
    main(**vars(parser.parse_args()))
