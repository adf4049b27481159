"""First-order mutants: a function with one small syntactic change, planted while something runs.

The changes are those of mutmut's operators (operators, bounds, constants, arguments,
assignments) and one of our own, a dropped statement. Texts of errors, messages of
assertions and annotations are left alone: nothing judges them.
"""

import ast
import difflib
import importlib
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

import libcst as cst
import msgspec
from mutmut.mutation.mutators import mutation_operators

from kvproof.spec.clauses import Clause

IMPL: Final = (
    "kvproof.impl.arithmetic",
    "kvproof.impl.block_pool",
    "kvproof.impl.free_queue",
    "kvproof.impl.managers.base",
    "kvproof.impl.managers.full_attention",
    "kvproof.impl.coordinator",
    "kvproof.impl.manager",
    "kvproof.impl.life",
    "kvproof.impl.hashing",
    "kvproof.impl.request",
    "kvproof.impl.metrics",
    "kvproof.impl.worker.block_table",
    "kvproof.impl.worker.input_batch",
    "kvproof.impl.worker.protocol",
    "kvproof.impl.worker.slot_mapping",
)
"""The implementation: whoever mutates it must be found out by the oracle."""

ORACLE: Final = (
    "kvproof.spec.clauses",
    "kvproof.spec.transitions",
    *(
        f"kvproof.spec.invariants.{name}"
        for name in ("ownership", "content", "progress", "quiescence", "table_agreement", "commitment")
    ),
    *(
        f"kvproof.spec.properties.{name}"
        for name in (
            "accounting",
            "atomicity",
            "canonicity",
            "capacity",
            "events",
            "isolation",
            "leaks",
            "refinement",
            "reset",
        )
    ),
)
"""The oracle: a mutant of it must be found out by faults that it misses, or by false alarms."""


class Mutant(msgspec.Struct, frozen=True):
    """A function by its dotted name, the line of the change in its file, the lines before and after it."""

    module: str
    target: str
    line: int
    before: str
    after: str
    source: str


def functions(module: str) -> dict[str, FunctionType]:
    """The functions and methods that a module defines, by dotted name; of a clause its check."""
    found: dict[str, FunctionType] = {}
    for name, value in vars(importlib.import_module(module)).items():
        holders: Iterable[tuple[str, object]] = [(name, value)]
        if isinstance(value, type) and value.__module__ == module:
            holders = [(f"{name}.{inner}", member) for inner, member in vars(value).items()]
        for dotted, member in holders:
            function = _function(member)
            if function is not None and function.__module__ == module and not function.__code__.co_freevars:
                found[f"{module}.{dotted}"] = function
    return {name: function for name, function in found.items() if _is_written(function)}


def _function(member: object) -> FunctionType | None:
    if isinstance(member, Clause):
        member = member.check
    if isinstance(member, property):
        member = member.fget
    member = getattr(member, "__func__", member)
    return member if isinstance(member, FunctionType) else None


def _is_written(function: FunctionType) -> bool:
    """Whether somebody wrote it: generated methods have no source of their own."""
    try:
        return inspect.getsource(function).lstrip().startswith(("def ", "@"))
    except OSError:
        return False


def mutants(module: str, targets: Callable[[str], bool] = lambda _: True) -> list[Mutant]:
    """All mutants of a module's functions, or of chosen ones, in order."""
    chosen = [(target, function) for target, function in functions(module).items() if targets(target)]
    return [each for target, function in chosen for each in _of(module, target, function)]


def _of(module: str, target: str, function: FunctionType) -> Iterator[Mutant]:
    source = textwrap.dedent(inspect.getsource(function))
    tree = cst.parse_module(source)
    collector = _Collector()
    tree.visit(collector)
    seen = {ast.dump(ast.parse(source))}
    for node, changed in collector.found:
        whole = tree.deep_replace(node, changed)
        assert isinstance(whole, cst.Module), "a part was replaced"
        code = whole.code
        try:
            shape = ast.dump(ast.parse(code))
        except SyntaxError:
            continue
        if shape not in seen:
            seen.add(shape)
            offset, before, after = _difference(source, code)
            yield Mutant(module, target, function.__code__.co_firstlineno + offset, before, after, code)


def _difference(source: str, code: str) -> tuple[int, str, str]:
    """Where two texts first differ, and the lines that differ there."""
    old, new = source.splitlines(), code.splitlines()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            return a, _flat(old[a:b]), _flat(new[c:d])
    return 0, "", ""


def _flat(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines)


class _Collector(cst.CSTVisitor):
    """All places where an operator applies, with what it makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Raise) or _is_wording(node):
            return False
        if isinstance(node, cst.Assert):
            node.test.visit(self)
            return False
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                self.found += [(node, changed) for changed in operator(node)]
        if isinstance(node, cst.SimpleStatementLine) and _may_be_dropped(node):
            self.found.append((node, node.with_changes(body=[cst.Pass()])))
        return True


def _is_wording(node: cst.CSTNode) -> bool:
    """Whether it only makes a text for a reader: evidence is shown, not judged."""
    return isinstance(node, cst.FormattedString) or (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "Evidence"
    )


def _may_be_dropped(line: cst.SimpleStatementLine) -> bool:
    """Whether a statement can go without leaving a name unbound: a call, or a write into something."""
    (statement,) = line.body if len(line.body) == 1 else (None,)
    match statement:
        case cst.Expr(value=cst.Call()) | cst.AugAssign() | cst.Del():
            return True
        case cst.Assign(targets=targets):
            return all(isinstance(each.target, cst.Attribute | cst.Subscript) for each in targets)
    return False


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Run with a mutant in place, wherever its function has been taken to."""
    function = functions(mutant.module)[mutant.target]
    file = f"<mutant of {mutant.target}>"
    linecache.cache[file] = (len(mutant.source), None, mutant.source.splitlines(keepends=True), file)
    space: dict[str, Any] = {}
    exec(compile(mutant.source, file, "exec"), function.__globals__, space)
    made = _function(space[function.__name__])
    assert made is not None, "a mutant of a function is one"
    before = function.__code__, function.__defaults__, function.__kwdefaults__
    function.__code__, function.__defaults__ = made.__code__, made.__defaults__
    function.__kwdefaults__ = made.__kwdefaults__
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = before
