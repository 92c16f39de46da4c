from __future__ import annotations

import pytest

from perfsuite.records.recipe import PRECISIONS
from perfsuite.system.gpus import peak_flops_per_s


# Names as drivers report them, with the dense figures of bf16 products, or of fp16 before Ampere.
@pytest.mark.parametrize(
    ("gpu", "precision", "tflops"),
    [
        ("Tesla V100-SXM2-16GB", "amp-fp16", 125),
        ("Tesla V100-PCIE-32GB", "O1", 112),
        ("Tesla V100S-PCIE-32GB", "O2", 130),
        ("Tesla T4", "O3", 65),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "amp-bf16", 312),
        ("A100-SXM4-40GB", "tf32", 156),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
        ("NVIDIA A100 80GB PCIe", "O0", 19.5),
        ("NVIDIA A10", "mp-bf16", 125),
        ("NVIDIA A30", "amp-bf16", 165),
        ("NVIDIA A40", "amp-bf16", 149.7),
        ("NVIDIA L4", "amp-bf16", 121),
        ("NVIDIA L40", "amp-bf16", 181.05),
        ("NVIDIA L40S", "amp-bf16", 362.05),
        ("NVIDIA GeForce RTX 3090", "amp-bf16", 71),
        ("NVIDIA GeForce RTX 4090", "amp-bf16", 165.2),
        ("NVIDIA H100 PCIe", "amp-bf16", 756.5),
        ("NVIDIA H100 NVL", "amp-bf16", 835.5),
        ("NVIDIA H100 80GB HBM3", "amp-bf16", 989.5),
        ("NVIDIA H200", "tf32", 494.5),
        ("NVIDIA H200 NVL", "fp32", 60),
        ("NVIDIA B200", "bf16", 2250),
    ],
)
def test_a_known_gpu_has_its_dense_peak(gpu: str, precision: str, tflops: float) -> None:
    assert peak_flops_per_s(gpu, precision) == tflops * 1e12


@pytest.mark.parametrize(
    ("gpu", "precision"),
    [
        ("NVIDIA A10G", "bf16"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16"),
        ("NVIDIA H100", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("NVIDIA L4", "fp64"),
        ("Tesla V100-SXM2-16GB", "tf32"),
        ("Tesla V100-SXM2-16GB", "amp-bf16"),
        ("Tesla T4", "bf16"),
        ("Intel(R) Xeon(R) Platinum 8481C", "fp32"),
        ("", "fp32"),
    ],
)
def test_what_is_not_in_the_table_has_no_peak(gpu: str, precision: str) -> None:
    assert peak_flops_per_s(gpu, precision) is None


# In fp8 only the products of linear layers have 8 bits, so that no one peak is a step's.
@pytest.mark.parametrize(
    "precision", [name for name in PRECISIONS if name != "fp64" and not name.startswith("fp8")]
)
def test_every_precision_of_one_arithmetic_has_a_peak_somewhere(precision: str) -> None:
    assert peak_flops_per_s("NVIDIA H200", precision) is not None
