"""A small convolutional network with normalised activations."""

from torch import nn


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 48, kernel_size=3, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.Conv2d(48, 48, kernel_size=3, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48 * 8 * 8, 10),
    )
