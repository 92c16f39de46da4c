"""What the README takes for granted: a reader's own package. Copied, never imported here."""

import os

import torch
import torch.distributed as dist
from torch.nn import functional


class MyModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, inputs):
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs))
        return inputs


class MyData(torch.utils.data.Dataset):
    def __init__(self, split):
        self.inputs = torch.randn(256, 8)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], index % 8


def main(num_steps=10_000):
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(MyModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        loss = functional.cross_entropy(model(torch.randn(32, 8)), torch.randint(8, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
