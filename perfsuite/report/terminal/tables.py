"""Tables as a terminal shows them, each row one line however long."""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len

from perfsuite.records.cell import CellLine
from perfsuite.report.rows import Column, Row, T, columns_of, filled, row_of_line

_GAP = " " * 3
# What a person looks for first, in the order of the fields of a recipe.
_KEYS = (
    *("workload", "parallel", "precision", "checkpointing", "numerics", "num_workers"),
    *("step_time_s", "spread_ratio", "samples_per_s", "tokens_per_s", "device_samples_per_s"),
    *("device_tokens_per_s", "tflops", "mfu", "hfu", "load_ratio", "peak_bytes", "collectives"),
    *("host_syncs", "graph_breaks", "recompiles", "compile_s", "energy_j"),
)


def progress_line(line: CellLine) -> str:
    """Return one line for a cell that has just ended."""
    if (row := row_of_line(line)) is None:
        reason = (line.reason or "").splitlines()
        return f"{line.fullname}: {line.outcome}" + (f": {reason[0]}" if reason else "")
    columns = columns_of("step_time_s", "spread_ratio", "samples_per_s")
    step, spread, samples = (column.text(row) for column in columns)
    rate = "" if samples == "-" else f", {samples} samples/s"
    outcome = "" if line.outcome == "passed" else f" ({line.outcome})"
    return f"{line.fullname}: {step} {spread} a step{rate}{outcome}"


def report_table(rows: Sequence[Row]) -> str:
    """Return the table of the cells of any suite, without empty columns."""
    trained = {(row.subject, row.recipe) for row in rows if row.record is not None}
    leading = "workload" if len(trained) == len(rows) else "cell"
    keys = dict.fromkeys([leading, "verdict", "policy", "change_ratio", *_KEYS])
    return table_of(filled(columns_of(*keys), rows), rows)


def table_of(columns: Sequence[Column[T]], rows: Iterable[T]) -> str:
    """Return a table of things by their columns."""
    titles = [(column.title, column.is_number) for column in columns]
    return text_table(titles, ([column.text(row) for column in columns] for row in rows))


def text_table(columns: Sequence[tuple[str, bool]], rows: Iterable[Iterable[str]]) -> str:
    """Return texts as a table; a column of numbers (True) is aligned to the right."""
    lines = [[title for title, _ in columns], *map(list, rows)]
    widths = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]

    def aligned(texts: Iterable[str]) -> Iterator[str]:
        for text, width, (_, is_number) in zip(texts, widths, columns, strict=True):
            space = " " * (width - cell_len(text))
            yield space + text if is_number else text + space

    head, *body = (f" {_GAP.join(aligned(texts))}".rstrip() for texts in lines)
    rule = f" {'─' * (sum(widths) + len(_GAP) * (len(widths) - 1))}".rstrip()
    return "\n".join(filter(None, [head, rule, *body]))
