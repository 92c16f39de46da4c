"""A generator of digits, and the critic that tells them from real ones."""

from torch import nn

NOISE = 32


def build_model():
    generator = nn.Sequential(
        nn.Linear(NOISE, 128),
        nn.ReLU(),
        nn.Linear(128, 256),
        nn.ReLU(),
        nn.Linear(256, 64),
        nn.Sigmoid(),
    )
    critic = nn.Sequential(
        nn.Linear(64, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 128),
        nn.LeakyReLU(0.2),
        nn.Linear(128, 1),
    )
    return generator, critic
