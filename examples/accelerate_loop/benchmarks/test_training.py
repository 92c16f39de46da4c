"""train.py as its owner launches it; what it saves goes to an empty folder of each launch."""

COMMAND = ["accelerate", "launch", "--num_processes=1", "--num_machines=1", "--mixed_precision=no"]
COMMAND += ["--dynamo_backend=no", "--num_cpu_threads_per_process=1", "train.py", "--out={out}"]


def test_command(command_benchmark):
    command_benchmark(COMMAND, steps=100, samples_per_step=32)
