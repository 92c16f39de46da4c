"""The whole loop of train.py on two ranks."""


def train():
    from train import main  # here, so that collecting tests stays fast

    main()


def test_loop(loop_benchmark):
    loop_benchmark(train, ranks=2, steps=40, samples_per_step=64)
