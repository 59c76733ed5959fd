"""The small changes to a module that its tests should notice.

Each is one edit of the text, so a survivor is shown as the line that it changes. Everything that is
executed is changed: bodies of functions, decorated or not, and what stands at the level of a class
or a module (bounds of keys, defaults, tables, registrations).

What a person reads is left alone, since another wording is no weaker protection, and tests compare
the texts that matter as they are printed: docstrings, all that stands in a `raise`, f-strings,
literals with a space in them, and the arguments of `warnings.warn`. Annotations, `__all__`, imports
and what stands under `TYPE_CHECKING` do nothing; the `place` of a registration is a mere rank, and
the type checker holds the options of `@dataclass`. How much a cache keeps decides what is computed
twice. The `strict` of a `zip` asserts to programmers that lengths agree: where it fails, the
program has a fault already, and no refusal may rest on it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
_ARITHMETIC: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "/"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_CALLED: Final = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "ceil": "floor",
    "floor": "ceil",
    "sorted": "list",
    "abs": "",
    "minimum": "maximum",
    "maximum": "minimum",
}


@dataclass(frozen=True, order=True)
class Mutant:
    """One edit of a module.

    Attributes:
        path: the module, relative to the root.
        start: first byte that is replaced.
        end: first byte behind it that is not.
        text: what stands there instead.
        line: number of the line of `start`, counted from one.
        operator: the kind of change.
    """

    path: str
    start: int
    end: int
    text: str
    line: int
    operator: str

    def apply(self, source: bytes) -> bytes:
        """Return the module with this edit."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def lines(self, source: bytes) -> tuple[str, str]:
        """Return the lines that the edit touches, without indentation, as they are and edited."""
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        last = len(source) if last < 0 else last
        before = source[first:last].decode()
        after = (source[first : self.start] + self.text.encode() + source[self.end : last]).decode()
        return " ".join(before.split()), " ".join(after.split())


def mutants_of(path: str, source: bytes, lines: Collection[str] | None = None) -> list[Mutant]:
    """Return the mutants of a module that still compile, in the order of their places.

    Args:
        path: the module, relative to the root.
        source: its text.
        lines: of these lines alone, as `Mutant.lines` has them; None for all.

    Raises:
        SyntaxError: If the module does not parse.
    """
    found = sorted(set(_Places(path, source).all()))
    if lines is not None:
        found = [mutant for mutant in found if mutant.lines(source)[0] in lines]
    return [mutant for mutant in found if _compiles(mutant.apply(source))]


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "<mutant>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def statements(source: bytes) -> dict[int, tuple[int, int]]:
    """Return the first and last line of the innermost statement that each line belongs to.

    Of a compound statement only the head counts: its condition, not what it guards.
    """
    found: dict[int, tuple[int, int]] = {}
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    # The inner ones come later and overwrite the outer ones.
    for node in sorted(nodes, key=lambda node: (node.lineno, -(node.end_lineno or 0))):
        body = getattr(node, "body", None)
        last = node.end_lineno or node.lineno
        if body and body[0].lineno > node.lineno:
            last = body[0].lineno - 1
        found.update(dict.fromkeys(range(node.lineno, last + 1), (node.lineno, last)))
    return found


class _Places:
    """Walks a module's tree and says what may be changed where."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        self.source = source
        self.tree = ast.parse(source)
        self.line_starts = [0]
        for line in source.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))

    def all(self) -> Iterator[Mutant]:
        """Yield every change."""
        yield from self._body(self.tree)

    # Where a node stands.

    def _start(self, node: Any) -> int:
        return self.line_starts[node.lineno - 1] + node.col_offset

    def _end(self, node: Any) -> int:
        return self.line_starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        return self.source[self._start(node) : self._end(node)].decode()

    def _edit(self, start: int, end: int, text: str, operator: str) -> Mutant:
        line = self.source.count(b"\n", 0, start) + 1
        return Mutant(self.path, start, end, text, line, operator)

    def _replace(self, node: ast.AST, text: str, operator: str) -> Mutant:
        return self._edit(self._start(node), self._end(node), text, operator)

    def _between(
        self, left: ast.AST, right: ast.AST, pattern: str, text: str, operator: str
    ) -> Iterator[Mutant]:
        """Change an operator between two operands; comments there are not looked into."""
        start = self._end(left)
        gap = re.sub(
            rb"#[^\n]*", lambda found: b" " * len(found[0]), self.source[start : self._start(right)]
        )
        found = re.search(pattern.encode(), gap)
        if found:
            yield self._edit(start + found.start(), start + found.end(), text, operator)

    # What is walked.

    def _body(self, node: ast.AST) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child)

    def _visit(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)) or _is_docstring(node):
            return
        if isinstance(node, ast.Raise):
            yield self._replace(node, "pass", "no raise")
            return
        if isinstance(node, ast.If) and _is_for_types(node.test):
            return
        yield from self._changes(node)
        for name, value in ast.iter_fields(node):
            # Only annotations and types stand in these.
            if name in ("annotation", "returns", "type_params", "format_spec", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_for_people(node, child):
                    yield from self._visit(child)

    def _changes(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare():
                yield from self._comparison(node)
            case ast.BoolOp():
                yield from self._connective(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                # Neither a union of types nor two texts side by side are arithmetic.
                if not _is_union(node) and not _is_text(left) and not _is_text(right):
                    old, new = _ARITHMETIC[type(op)]
                    yield from self._between(left, right, re.escape(old), new, "arithmetic")
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in _ARITHMETIC:
                old, new = _ARITHMETIC[type(op)]
                yield from self._between(
                    target, value, re.escape(old + "="), new + "=", "arithmetic"
                )
                yield from self._between(
                    target, value, re.escape(old + "="), "=", "no accumulation"
                )
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
                yield self._replace(node, f"({self._text(operand)})", "no sign or negation")
            case ast.Constant():
                yield from self._constant(node)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                # The other way round than a comparison or a `not` are changes of their own.
                if not _is_turned_round(test):
                    yield self._replace(test, f"(not ({self._text(test)}))", "condition")
            case ast.comprehension(ifs=[_, *_]):
                for test in node.ifs:
                    yield self._replace(test, "True", "no filter")
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._replace(node, "pass", "no call")
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield self._replace(value, "None", "no result")
            case ast.Break():
                yield self._replace(node, "continue", "loop")
            case ast.Continue():
                yield self._replace(node, "break", "loop")
            case ast.Call(func=ast.Name(id="dataclass" | "lru_cache")):
                pass
            case ast.Call(func=ast.Attribute(attr="lru_cache")):
                pass
            case ast.Call():
                yield from self._call(node)
            case _:
                pass

    def _comparison(self, node: ast.Compare) -> Iterator[Mutant]:
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands, node.ops, node.comparators, strict=False):
            old, new = _COMPARISONS[type(op)]
            pattern = rf"\b{old}\b" if old[0].isalpha() else re.escape(old)
            yield from self._between(left, right, pattern, new, "comparison")

    def _connective(self, node: ast.BoolOp) -> Iterator[Mutant]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from self._between(left, right, rf"\b{old}\b", new, "connective")

    def _constant(self, node: ast.Constant) -> Iterator[Mutant]:
        value = node.value
        if value is True or value is False:
            yield self._replace(node, str(not value), "constant")
        elif isinstance(value, int):
            yield self._replace(node, str(value + 1), "constant")
            if value > 1:
                yield self._replace(node, str(value - 1), "constant")
        elif isinstance(value, float):
            yield self._replace(node, repr(2.0 * value) if value else "1.0", "constant")
        elif isinstance(value, str) and value and not re.search(r"\s", value):
            yield self._replace(node, repr("X" + value), "text")
        elif isinstance(value, bytes) and value:
            yield self._replace(node, repr(b"X" + value), "text")

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in _CALLED:
            end = self._end(node.func)
            yield self._edit(end - len(name), end, _CALLED[name], "another function")
        arguments = sorted([*node.args, *node.keywords], key=self._start)
        for number, keyword in enumerate(arguments):
            if not isinstance(keyword, ast.keyword) or keyword.arg is None:
                continue
            if _is_assertion(node, keyword) or _is_look(node, keyword):
                continue
            # With the comma that separates it from its neighbour.
            first = self._start(keyword)
            if number:
                yield self._edit(
                    self._end(arguments[number - 1]), self._end(keyword), "", "no argument"
                )
            elif len(arguments) > 1:
                yield self._edit(first, self._start(arguments[1]), "", "no argument")
            else:
                yield self._edit(first, self._end(keyword), "", "no argument")


def _is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a text that nothing uses."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_turned_round(test: ast.expr) -> bool:
    """Whether another change already turns a condition round."""
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and isinstance(
            test.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
        )
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _is_text(node: ast.expr) -> bool:
    """Whether a node is a literal of text or bytes."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, ast.JoinedStr)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _is_union(node: ast.BinOp) -> bool:
    """Whether `|` joins names of types, as far as the text tells."""
    return isinstance(node.op, ast.BitOr) and _is_type(node.left) and _is_type(node.right)


def _is_type(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_union(node)
    if isinstance(node, ast.Subscript):
        return _is_type(node.value)
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return _is_none(node) or last[:1].isupper() or last in _BUILT_IN_TYPES


def _is_assertion(call: ast.Call, argument: ast.AST) -> bool:
    """Whether an argument is the `strict` of a `zip`."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "zip"):
        return False
    return isinstance(argument, ast.keyword) and argument.arg == "strict"


# How something is drawn, and where its words stand; never what is drawn.
_LOOKS: Final = frozenset(
    (
        *("alpha", "bbox_to_anchor", "borderaxespad", "capsize", "clip_on", "cmap", "color"),
        *("fontsize", "ha", "hatch", "linestyle", "linewidth", "linewidths", "loc", "markersize"),
        *("ncols", "rotation", "s", "textcoords", "va", "width", "xycoords", "xytext", "zorder"),
    )
)


# Likewise on a terminal. What cuts or folds a text (`no_wrap`, `soft_wrap`) is no look.
_PRINTERS: Final = frozenset(("Panel", "Table", "Text", "add_column", "append", "grid", "print"))
_TERMINAL_LOOKS: Final = frozenset(
    ("box", "justify", "min_width", "pad_edge", "padding", "style", "title_align", "title_justify")
)


def _is_look(call: ast.Call, argument: ast.AST) -> bool:
    """Whether an argument of a call on axes, or of a printing one, says how something looks."""
    if not isinstance(argument, ast.keyword):
        return False
    match call.func:
        case ast.Attribute(value=ast.Name(id="axes")):
            return argument.arg in _LOOKS
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _PRINTERS:
            return argument.arg in _TERMINAL_LOOKS
    return False


_BUILT_IN_TYPES: Final = {"int", "float", "str", "bytes", "bool", "dict", "list", "tuple", "set"}


def _is_for_people(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a part of a node is not executed for its value."""
    match parent:
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Call(func=ast.Name(id="dataclass")):
            # Whether instances are frozen is held by the type checker.
            return True
        case ast.Call(func=ast.Name(id="lru_cache") | ast.Attribute(attr="lru_cache")):
            return True
        case ast.Call() if _is_assertion(parent, child) or _is_look(parent, child):
            return True
        case ast.keyword(arg="place"):
            # A rank in an order: the one beside it puts nothing in another place.
            return True
        case ast.Call(func=ast.Name(id="clean"), args=[_, *limits]):
            # How many characters of a hostile text a person is shown.
            return child in limits
        case ast.Call(func=ast.Attribute(attr="warn")):
            return child is not parent.func
        case ast.Call(func=ast.Name(id="TypeVar" | "NewType" | "cast" | "ParamSpec")):
            return True
        case ast.Subscript(slice=index) if child is index:
            # The parameters of a type; an index into data is executed.
            value = parent.value
            name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
            return name[:1].isupper() or name in _BUILT_IN_TYPES
        case _:
            return False
