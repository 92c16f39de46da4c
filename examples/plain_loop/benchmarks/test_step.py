"""One step of train.py, without what stands around it."""

from itertools import chain, repeat

from train import BATCH_SIZE, build, load_data, train_step


def test_step(step_benchmark):
    def build_step():
        training, batches = build(), chain.from_iterable(repeat(load_data()))
        return lambda: train_step(*training, *next(batches))

    step_benchmark(build_step, samples_per_step=BATCH_SIZE)
