"""Train on handwritten digits in mixed precision: python train.py [--epochs N]."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from model import build_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16 if DEVICE == "cuda" else torch.bfloat16
BATCH_SIZE = 64


def load_data():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    data = TensorDataset(images, torch.tensor(labels))
    return DataLoader(data, BATCH_SIZE, shuffle=True, drop_last=True)


def build():
    model = build_model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, torch.amp.GradScaler(DEVICE)


def train_step(model, optimizer, scaler, images, labels):
    images, labels = images.to(DEVICE), labels.to(DEVICE)
    with torch.autocast(DEVICE, dtype=DTYPE):
        loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def main(epochs=20):
    torch.manual_seed(0)
    data = load_data()
    model, optimizer, scaler = build()
    for epoch in range(epochs):
        total = 0.0
        for images, labels in data:
            total += train_step(model, optimizer, scaler, images, labels).item()
        print(f"epoch {epoch}: loss {total / len(data):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    main(parser.parse_args().epochs)
