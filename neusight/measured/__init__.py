"""Measured rows: a question in the words of ``neusight.questions`` with its answer.

``read_table(path) -> MeasuredTable``: a parquet or CSV file of one kind of rows, its columns checked;
``kernel_parts(frame)``: rows of kernels as batches with their conditions and devices;
``compare(table, predictor) -> (Scored, skipped)``: predictions beside what was measured.
"""

from neusight.measured.compare import compare
from neusight.measured.kernels import KernelPart, kernel_part, kernel_parts
from neusight.measured.table import MeasuredTable, read_table

__all__ = ["KernelPart", "MeasuredTable", "compare", "kernel_part", "kernel_parts", "read_table"]
