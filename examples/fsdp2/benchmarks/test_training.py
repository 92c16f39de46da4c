"""The whole loop of train.py on two ranks."""

from train import BATCH_SIZE, main


def test_loop(loop_benchmark):
    loop_benchmark(main, ranks=2, steps=40, samples_per_step=2 * BATCH_SIZE)
