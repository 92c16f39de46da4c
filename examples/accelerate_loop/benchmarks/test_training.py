"""The whole loop of train.py on two ranks; what it saves goes to a temporary folder."""

from train import ACCUMULATION, BATCH_SIZE, main

SAMPLES = 2 * BATCH_SIZE * ACCUMULATION


def test_loop(loop_benchmark, tmp_path):
    loop_benchmark(lambda: main(out=tmp_path), ranks=2, steps=40, samples_per_step=SAMPLES)
