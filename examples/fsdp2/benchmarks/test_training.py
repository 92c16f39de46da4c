"""train.py as its owner launches it, on two ranks."""

COMMAND = ["torchrun", "--nproc-per-node=2", "train.py"]


def test_command(command_benchmark):
    command_benchmark(COMMAND, steps=100, samples_per_step=64)
