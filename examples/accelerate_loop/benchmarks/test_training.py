"""The whole loop of train.py on two ranks; what it saves goes to a temporary folder."""


def test_loop(loop_benchmark, tmp_path):
    def train():
        from train import main  # here, so that collecting tests stays fast

        main(out=tmp_path)

    loop_benchmark(train, ranks=2, steps=40, samples_per_step=64)
