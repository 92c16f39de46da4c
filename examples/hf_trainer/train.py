"""Fine-tune on handwritten digits with Hugging Face's Trainer: python train.py [--out FOLDER]."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from model import build_model

BATCH_SIZE = 32  # of each process


class Digits(Dataset):
    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


class StopWhenLearnt(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and logs.get("loss", 1.0) < 0.01:
            control.should_training_stop = True


def main(out="runs", epochs=20):
    set_seed(0)
    arguments = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH_SIZE,
        dataloader_drop_last=True,
        learning_rate=1e-3,
        logging_steps=20,
        save_strategy="epoch",
        save_total_limit=2,
        report_to="none",
    )
    trainer = Trainer(build_model(), arguments, train_dataset=Digits(), callbacks=[StopWhenLearnt])
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="runs")
    parser.add_argument("--epochs", type=int, default=20)
    main(**vars(parser.parse_args()))
