"""A small multi-layer perceptron."""

from torch import nn


def build_model():
    return nn.Sequential(
        nn.Linear(64, 512),
        nn.GELU(),
        nn.Linear(512, 512),
        nn.GELU(),
        nn.Linear(512, 10),
    )
