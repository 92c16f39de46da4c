"""The whole loop of train.py: a step is one of the generator, whose optimizer is Adam."""

from train import BATCH_SIZE, CRITIC_STEPS, main


def test_loop(loop_benchmark):
    loop_benchmark(main, steps=40, samples_per_step=CRITIC_STEPS * BATCH_SIZE, optimizer="Adam")
