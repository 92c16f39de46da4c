"""Train a Wasserstein GAN on handwritten digits: python train.py [--epochs N]."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from model import NOISE, build_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH_SIZE = 128
CRITIC_STEPS = 3
CLIP = 0.01


def load_data():
    images, _ = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32) / 16
    return DataLoader(images, BATCH_SIZE, shuffle=True, drop_last=True)


def train_critic(generator, critic, optimizer, real):
    with torch.no_grad():
        fake = generator(torch.randn(len(real), NOISE, device=DEVICE))
    loss = critic(fake).mean() - critic(real).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for weight in critic.parameters():
            weight.clamp_(-CLIP, CLIP)
    return loss


def train_generator(generator, critic, optimizer):
    loss = -critic(generator(torch.randn(BATCH_SIZE, NOISE, device=DEVICE))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def main(epochs=60):
    torch.manual_seed(0)
    generator, critic = (network.to(DEVICE) for network in build_model())
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    data, number = load_data(), 0
    for epoch in range(epochs):
        for real in data:
            number += 1
            distance = -train_critic(generator, critic, critic_optimizer, real.to(DEVICE))
            if number % CRITIC_STEPS == 0:
                train_generator(generator, critic, generator_optimizer)
        print(f"epoch {epoch}: distance {distance.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    main(parser.parse_args().epochs)
