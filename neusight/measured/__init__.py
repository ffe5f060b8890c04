"""Measured rows: a question in the words of ``neusight.questions`` with its answer.

``read_table(path) -> MeasuredTable``: a parquet or CSV file of one kind of rows, its columns checked;
``kernel_parts(frame)``: rows of kernels as batches with their conditions and devices;
``compare(table, predictor) -> (lines, skipped)``: predictions beside what was measured;
``evaluate(files, predictor) -> Evaluation``: the same of many files, by any choice of rows, on several processes;
``summarise(lines, by)``, ``decisions(tables)``: errors by group, and what they cost who decides by predictions;
``ratios(lines, column)``: predicted and measured ratios of rows that differ in nothing but a column.
"""

from neusight.measured.choice import RowChoice, files_of
from neusight.measured.compare import compare
from neusight.measured.errors import SOUGHT, compare_peers, peers_of, summarise
from neusight.measured.evaluation import Evaluation, evaluate
from neusight.measured.kernels import KernelPart, kernel_part, kernel_parts
from neusight.measured.pairs import decisions, ratios
from neusight.measured.table import MeasuredTable, read_table

__all__ = [
    "SOUGHT", "Evaluation", "KernelPart", "MeasuredTable", "RowChoice", "compare", "compare_peers", "decisions",
    "evaluate", "files_of", "kernel_part", "kernel_parts", "peers_of", "ratios", "read_table", "summarise",
]  # fmt: skip
