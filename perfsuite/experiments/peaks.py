"""Peak speeds of GPUs, by which the share that a training uses is told (MFU).

Dense figures in TFLOP/s: where a vendor prints those with 2:4 sparsity alone, half of them. A GPU
that is not listed has no MFU, and neither has a part of one (MIG), nor a CPU.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class _Peak(NamedTuple):
    """Of a GPU whose name, as NVML and torch report it, matches `name` as a whole.

    `half` is of fp16 and bf16 with float32 sums, which is how torch multiplies.
    """

    name: str
    fp32: float
    tf32: float | None
    half: float
    source: str


_PEAKS: Final = (
    _Peak("Tesla V100S-PCIE-32GB", 16.4, None, 130, "NVIDIA V100 data sheet, January 2020"),
    _Peak("Tesla V100-PCIE-(16|32)GB", 14, None, 112, "NVIDIA V100 data sheet, January 2020"),
    _Peak("Tesla V100-SXM2-(16|32)GB", 15.7, None, 125, "NVIDIA V100 data sheet, January 2020"),
    _Peak("Tesla T4", 8.1, None, 65, "NVIDIA T4 data sheet, 2019"),
    _Peak(
        "(NVIDIA )?A100(-SXM4-[48]0GB|-PCIE-40GB| 80GB PCIe)",
        *(19.5, 156, 312),
        "NVIDIA A100 data sheet, June 2021",
    ),
    _Peak("NVIDIA A10", 31.2, 62.5, 125, "NVIDIA A10 data sheet, March 2021"),
    _Peak("NVIDIA A30", 10.3, 82, 165, "NVIDIA A30 data sheet, 2021"),
    _Peak("NVIDIA A40", 37.4, 74.8, 149.7, "NVIDIA A40 data sheet, 2021"),
    # 120 and 242 with sparsity.
    _Peak("NVIDIA L4", 30.3, 60, 121, "NVIDIA L4 data sheet, 2023"),
    _Peak("NVIDIA L40", 90.5, 90.5, 181.05, "NVIDIA L40 data sheet, 2023"),
    _Peak("NVIDIA L40S", 91.6, 183, 362.05, "NVIDIA L40S data sheet, 2023"),
    _Peak(
        "NVIDIA GeForce RTX 3090",
        *(35.6, 35.6, 71),
        "NVIDIA Ampere GA102 whitepaper, 2021, appendix A",
    ),
    _Peak("NVIDIA GeForce RTX 4090", 82.6, 82.6, 165.2, "NVIDIA Ada whitepaper, 2023, appendix A"),
    # With sparsity: 756 and 1,513 of the PCIe card, 835 and 1,671 of NVL, 989 and 1,979 of SXM.
    _Peak("NVIDIA H100 PCIe", 51, 378, 756.5, "NVIDIA H100 data sheet, 2023"),
    _Peak("NVIDIA H100 NVL", 60, 417.5, 835.5, "NVIDIA H100 data sheet, 2024"),
    _Peak("NVIDIA H100 80GB HBM3", 67, 494.5, 989.5, "NVIDIA H100 data sheet, 2023"),
    _Peak("NVIDIA H200 NVL", 60, 417.5, 835.5, "NVIDIA H200 data sheet, 2024"),
    _Peak("NVIDIA H200", 67, 494.5, 989.5, "NVIDIA H200 data sheet, 2024"),
    # 2.2 and 4.5 PFLOP/s with sparsity.
    _Peak("NVIDIA B200", 75, 1100, 2250, "NVIDIA Blackwell data sheet, 2025, HGX B200"),
)
# Which figure a recipe's precision is held against.
_COLUMNS: Final = {
    **dict.fromkeys(("fp32", "O0"), "fp32"),
    "tf32": "tf32",
    **dict.fromkeys(("bf16", "amp-bf16", "amp-fp16", "O1", "O2", "O3"), "half"),
}
_WITHOUT_BF16: Final = ("Tesla V100", "Tesla T4")


def peak_flops_per_s(gpu: str, precision: str) -> float | None:
    """Return the dense peak of a GPU in a precision; None where the table has none.

    >>> peak_flops_per_s("NVIDIA H200", "amp-bf16"), peak_flops_per_s("Tesla T4", "bf16")
    (989500000000000.0, None)
    """
    column = _COLUMNS.get(precision)
    if column is None or ("bf16" in precision and gpu.startswith(_WITHOUT_BF16)):
        return None
    for peak in _PEAKS:
        if re.fullmatch(peak.name, gpu):
            figure: float | None = getattr(peak, column)
            return None if figure is None else figure * 1e12
    return None
