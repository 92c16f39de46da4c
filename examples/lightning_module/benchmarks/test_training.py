"""The whole loop of train.py; what it saves goes to a temporary folder."""

from train import BATCH_SIZE, main


def test_loop(loop_benchmark, tmp_path):
    loop_benchmark(lambda: main(out=tmp_path), steps=40, samples_per_step=BATCH_SIZE)
