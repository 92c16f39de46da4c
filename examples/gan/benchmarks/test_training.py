"""The whole loop of train.py; a step of it ends where the generator's optimizer has stepped."""


def train():
    from train import main  # here, so that collecting tests stays fast

    main()


def test_loop(loop_benchmark):
    loop_benchmark(train, steps=100, samples_per_step=3 * 128, optimizer="Adam")
