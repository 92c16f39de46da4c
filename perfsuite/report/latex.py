"""Text as LaTeX data: whatever a name holds, it is printed and never obeyed."""

from __future__ import annotations

from typing import Final

# The ten characters with a meaning (The TeXbook, chapter 7), and three that the OT1 fonts print
# as others.
_ESCAPES: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "\n": " ",
        "\r": " ",
    }
)


def escape(text: str) -> str:
    r"""Return text as LaTeX prints it in a paragraph.

    >>> escape("my_model 50% {a}")
    'my\\_model 50\\% \\{a\\}'
    """
    return text.translate(_ESCAPES)
