"""Formulas of a space's file: arithmetic over columns of designs, read without running anything.

>>> Formula.of("max(1, width * depth / 64)").value({"width": np.array([4, 64]), "depth": np.array([8, 64])})
array([ 1., 64.])
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from neusight.errors import DataError, nearest

Values = Mapping[str, Any]
_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARED: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": lambda *values: reduce(np.minimum, values),
    "max": lambda *values: reduce(np.maximum, values),
    "ceil": np.ceil,
    "floor": np.floor,
    "sqrt": np.sqrt,
    "log2": np.log2,
}


@dataclass(frozen=True)
class Formula:
    """Sums, products, powers, comparisons, ``a if b else c``, a few functions, and tables ``name[key]``."""

    text: str
    tree: ast.expr

    @classmethod
    def of(cls, text: str | float, where: str = "formula") -> Formula:
        """Read a formula.

        Raises:
            DataError: text that is no formula, or uses syntax that formulas don't have.
        """
        try:
            tree = ast.parse(str(text), mode="eval").body
        except SyntaxError as error:
            raise DataError(f"{where}: '{text}' is no formula: write it like 2 * width * depth") from error
        formula = cls(str(text), tree)
        for node in ast.walk(tree):
            if not isinstance(node, _KNOWN):
                raise DataError(f"{where}: '{text}' has {type(node).__name__}, which formulas don't have")
        return formula

    @property
    def names(self) -> set[str]:
        """Names whose values the formula needs, without functions."""
        return {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)} - _FUNCTIONS.keys()

    def value(self, values: Values, where: str = "formula") -> np.ndarray:
        """Value of the formula for columns, or for single numbers.

        Args:
            values: numbers or columns by name; a mapping of numbers is a table.
            where: place that an error message names.

        Raises:
            DataError: a name that has no value, or a key that a table lacks.
        """
        return np.asarray(_value(self.tree, values, f"{where} '{self.text}'"))


_KNOWN = (
    *(ast.BinOp, ast.UnaryOp, ast.USub, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.IfExp, ast.Call, ast.Name),
    *(ast.Load, ast.Constant, ast.Subscript, *_BINARY, *_COMPARED),
)


def _value(node: ast.expr, values: Values, where: str) -> Any:
    def of(each: ast.expr) -> Any:
        return _value(each, values, where)

    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return _value_of(name, values, where)
        case ast.UnaryOp(operand=operand):
            return -of(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](of(left), of(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARED[type(op)](of(left), of(right))
        case ast.BoolOp(op=op, values=parts):
            joined = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return reduce(joined, map(of, parts))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return np.where(of(test), of(body), of(orelse))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(of, arguments))
        case ast.Subscript(value=ast.Name(id=name), slice=key):
            return _look_up(_value_of(name, values, where), of(key), f"{where}: {name}")
    raise DataError(f"{where}: functions of formulas are {', '.join(_FUNCTIONS)}, comparisons have two sides")


def _value_of(name: str, values: Values, where: str) -> Any:
    if name not in values:
        raise DataError(f"{where}: nothing is called {name}{nearest(name, sorted(values))}")
    return values[name]


def _look_up(table: Mapping[float, float], keys: Any, where: str) -> np.ndarray:
    column = np.asarray(keys, float)
    distinct, places = np.unique(column, return_inverse=True)
    if missing := [key for key in distinct.tolist() if key not in table]:
        raise DataError(f"{where} has no entry {missing[0]:g}: add one, or leave the designs that need it out")
    return np.array([table[key] for key in distinct.tolist()])[places].reshape(column.shape)
