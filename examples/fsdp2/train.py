"""Train on handwritten digits with FSDP2: torchrun --nproc-per-node=2 train.py [--epochs N]."""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from model import build_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH_SIZE = 32  # of each rank


def load_data():
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    return DataLoader(data, BATCH_SIZE, sampler=DistributedSampler(data), drop_last=True)


def shard(model):
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(epochs=20):
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    torch.manual_seed(0)
    model = shard(build_model().to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = load_data()
    for epoch in range(epochs):
        data.sampler.set_epoch(epoch)
        for pixels, labels in data:
            loss = functional.cross_entropy(model(pixels.to(DEVICE)), labels.to(DEVICE))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    main(parser.parse_args().epochs)
