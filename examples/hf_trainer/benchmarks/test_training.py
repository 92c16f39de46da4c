"""The whole loop of train.py; what it saves goes to a temporary folder."""


def test_loop(loop_benchmark, tmp_path):
    def train():
        from train import main  # here, so that collecting tests stays fast

        main(out=tmp_path)

    loop_benchmark(train, steps=100, samples_per_step=32)
