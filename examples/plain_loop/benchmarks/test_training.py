"""The whole loop of train.py."""

from train import BATCH_SIZE, main


def test_loop(loop_benchmark):
    loop_benchmark(main, steps=40, samples_per_step=BATCH_SIZE)
