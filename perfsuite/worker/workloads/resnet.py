"""torchvision's ResNet-18 on handwritten digits: a deep convolutional network with BatchNorm.

BatchNorm normalises over one rank's micro-batch: data parallelism makes it another computation.
"""

from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.optim import SGD

from perfsuite.errors import import_extra
from perfsuite.records.workload import Workload
from perfsuite.worker.workloads.digits import digits


def resnet18() -> Workload:
    """The workload "resnet18": random weights, digits of 32x32 pixels and three equal channels."""
    return Workload(
        name="resnet18",
        build_model=_build,
        # ResNet-18 divides height and width by 32: the smallest images with a pixel left.
        build_dataset=partial(digits, image_size=32, num_channels=3),
        loss=F.cross_entropy,
        build_optimizer=partial(SGD, lr=0.002, momentum=0.9),
        blocks=_basic_blocks,
        micro_batch_size=16,
    )


def _build() -> nn.Module:
    models = import_extra("torchvision.models", "workloads")
    model: nn.Module = models.resnet18(weights=None, num_classes=10)
    return model


def _basic_blocks(model: nn.Module) -> list[nn.Module]:
    stages = [model.get_submodule(f"layer{index}") for index in range(1, 5)]
    return [block for stage in stages for block in stage.children()]
