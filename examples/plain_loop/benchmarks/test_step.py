"""One step of train.py, without what stands around it."""

import itertools


def build_step():
    from train import build, load_data, train_step

    training, batches = build(), itertools.cycle(list(load_data()))
    return lambda: train_step(*training, *next(batches))


def test_step(step_benchmark):
    step_benchmark(build_step, samples_per_step=64)
