"""Right answers by class and a workload's own metrics: what is counted, and what cannot be."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from perfsuite import WorkloadError
from perfsuite.worker.training.evaluation import MetricSums, Tally


def scores(*classes, num_classes=3):
    return torch.nn.functional.one_hot(torch.tensor(classes), num_classes).float()


def test_right_answers_are_counted_by_the_targets_class_over_batches():
    tally = Tally()

    tally.add(scores(0, 1, 1), torch.tensor([0, 1, 2]))
    tally.add(scores(2, 2), torch.tensor([2, 0]))

    assert tally.take() == ((1, 1, 1), (2, 1, 2))


def test_a_target_that_losses_ignore_is_not_counted():
    tally = Tally()

    tally.add(scores(0, 0, 0), torch.tensor([0, -100, 3]))

    assert tally.take() == ((1, 0, 0), (1, 0, 0))


def test_counting_a_batch_waits_for_no_device():
    with FakeTensorMode():  # which has no values to wait for
        tally = Tally()
        outputs = torch.zeros(4, 3, device="cuda")

        tally.add(outputs, torch.zeros(4, dtype=torch.int64, device="cuda"))

        assert tally._counts.device.type == "cuda"


def test_scores_may_have_further_dimensions():
    tally = Tally()
    outputs = torch.zeros(2, 3, 4)
    outputs[:, 1] = 1.0

    tally.add(outputs, torch.tensor([[0, 1, 1, 1], [2, 2, 1, 0]]))

    assert tally.take() == ((0, 4, 0), (2, 4, 2))


@pytest.mark.parametrize(
    ("outputs", "target", "found"),
    [
        (torch.zeros(2), torch.zeros(2), "float32 (2,) and float32 (2,)"),
        (torch.zeros(2, 3), torch.zeros(2), "float32 (2, 3) and float32 (2,)"),
        (torch.zeros(2, 3), torch.zeros(3).long(), "float32 (2, 3) and int64 (3,)"),
        # One logit of a binary classifier, which is no score of each class.
        (torch.zeros(2, 1), torch.zeros(2).long(), "float32 (2, 1) and int64 (2,)"),
        ({"logits": 1}, torch.zeros(2).long(), "a dict and int64 (2,)"),
    ],
)
def test_other_tasks_than_classification_have_no_accuracy_and_say_why(outputs, target, found):
    tally = Tally()

    tally.add(outputs, target)

    assert tally.take() is None
    assert tally.why_none == (
        "accuracy needs scores (B, C, ...) of 2 classes or more from the model and whole numbers "
        f"(B, ...) as targets; here are {found}"
    )


def test_nothing_counted_is_nothing():
    assert Tally().take() is None


def test_a_metric_counts_each_batch_by_its_samples():
    sums = MetricSums("mine", lambda outputs, target: {"mean": outputs.mean(), "size": len(target)})

    sums.add(torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3))
    sums.add(torch.tensor([9.0]), torch.zeros(1))

    assert sums.take() == ({"mean": 15.0, "size": 10.0}, 4)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (0.5, "its metric returned a float; return a dict of numbers by name"),
        ({"f1": "high"}, "its metric returned 'f1': a str; return a dict of numbers by name"),
        (
            {"f1": torch.zeros(2)},
            "its metric returned 'f1': float32 (2,); return a dict of numbers by name",
        ),
        ({1: 0.5}, "its metric returned 1: a float; return a dict of numbers by name"),
    ],
)
def test_a_metric_that_gives_no_numbers_by_name_is_refused(found, message):
    sums = MetricSums("mine", lambda outputs, target: found)

    with pytest.raises(WorkloadError) as refused:
        sums.add(torch.zeros(2), torch.zeros(2))

    assert str(refused.value) == f"workload 'mine': {message}"
