"""Train on handwritten digits with Lightning: python train.py [--out FOLDER] [--epochs N]."""

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from model import build_model

BATCH_SIZE = 128


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = build_model()

    def training_step(self, batch, batch_index):
        pixels, labels = batch
        loss = functional.cross_entropy(self.model(pixels), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)]

    def train_dataloader(self):
        pixels, labels = load_digits(return_X_y=True)
        pixels = torch.tensor(pixels, dtype=torch.float32) / 16
        data = TensorDataset(pixels, torch.tensor(labels))
        return DataLoader(data, BATCH_SIZE, shuffle=True, drop_last=True)


def main(out="runs", epochs=20):
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        gradient_clip_val=1.0,
        logger=CSVLogger(out),
        callbacks=[ModelCheckpoint(monitor="loss"), LearningRateMonitor()],
    )
    trainer.fit(Digits())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="runs")
    parser.add_argument("--epochs", type=int, default=20)
    main(**vars(parser.parse_args()))
