"""CrossHair on the contracts of a module. Only contracts confirmed over all paths count."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

PER_CONDITION_SECONDS = 10
WHOLE_SECONDS = 120
_LINE = re.compile(r":(\d+): (info|error|warning): (.*)$")
_CALL = re.compile(r"when calling (.+?)(?: \(which |$)")


@dataclass(frozen=True)
class Contract:
    """One postcondition: the function, the line it is on, its text, and the preconditions beside it."""

    function: str
    line: int
    post: str
    pre: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What CrossHair said of a module's contracts."""

    contracts: tuple[Contract, ...]
    bare: tuple[str, ...]
    """Functions without a contract."""
    confirmed: tuple[Contract, ...] = ()
    refuted: dict[Contract, str] = field(default_factory=dict)
    """Contracts with a counterexample that fails on plain Python too, and the call."""
    doubtful: dict[Contract, str] = field(default_factory=dict)
    """Contracts with a counterexample that plain Python doesn't confirm."""

    @property
    def open(self) -> list[str]:
        """What isn't confirmed, by function."""
        left = [each.function for each in self.contracts if each not in self.confirmed]
        return list(dict.fromkeys([*left, *self.bare]))


def installed() -> bool:
    """Whether CrossHair can be run."""
    return importlib.util.find_spec("crosshair") is not None


def read(source: str) -> tuple[tuple[Contract, ...], tuple[str, ...]]:
    """The contracts of a source text, and its functions that have none."""
    found, bare = list[Contract](), list[str]()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
        clauses = [(node.lineno + i, *line.strip().partition(": ")) for i, line in enumerate(lines)]
        pre = tuple(text for _, word, _, text in clauses if word == "pre")
        posts = [
            Contract(node.name, number, text, pre) for number, word, _, text in clauses if word == "post"
        ]
        found += posts
        if not posts:
            bare.append(node.name)
    return tuple(found), tuple(bare)


def breaks(contract: Contract, call: str, names: dict[str, Any]) -> bool:
    """Whether this call, run on plain Python, meets the preconditions and not the postcondition."""
    function = names[contract.function]
    try:
        # The call gives its own arguments back, bound to the function's parameters.
        bound = eval(call, {**names, contract.function: inspect.signature(function).bind})
        scope = {**names, **bound.arguments}
    except (SyntaxError, NameError, TypeError, AttributeError):
        return False
    if not all(eval(pre, scope) for pre in contract.pre):
        return False
    try:
        returned = function(*bound.args, **bound.kwargs)
    except Exception:  # whatever it is, the contract promised a value
        return True
    return not eval(contract.post, {**scope, "__return__": returned})


def start(target: str, folder: str) -> "subprocess.Popen[str]":
    """CrossHair on a module name or a file."""
    options = ("--analysis_kind=PEP316", "--report_all", f"--per_condition_timeout={PER_CONDITION_SECONDS}")
    command = [sys.executable, "-m", "crosshair", "check", *options, target]
    return subprocess.Popen(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )


def finish(running: "subprocess.Popen[str]") -> str:
    """Its output; nothing if it takes too long."""
    try:
        return running.communicate(timeout=WHOLE_SECONDS)[0]
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        return ""


def judge(source: str, names: dict[str, Any], output: str) -> Report:
    """Read CrossHair's lines; a counterexample is replayed before it is believed."""
    contracts, bare = read(source)
    by_line = {each.line: each for each in contracts}
    confirmed, refuted, doubtful = list[Contract](), dict[Contract, str](), dict[Contract, str]()
    for number, kind, message in _lines(output):
        contract = by_line.get(number)
        if contract is None:
            continue
        if kind == "info" and message == "Confirmed over all paths.":
            confirmed.append(contract)
        elif kind == "error":
            found = _CALL.search(message)
            call = found.group(1) if found else ""
            believed = bool(call) and breaks(contract, call, names)
            (refuted if believed else doubtful)[contract] = call or message
    kept = tuple(each for each in confirmed if each not in refuted and each not in doubtful)
    return Report(contracts, bare, kept, refuted, doubtful)


def _lines(output: str) -> Iterator[tuple[int, str, str]]:
    for line in output.splitlines():
        found = _LINE.search(line)
        if found:
            yield int(found.group(1)), found.group(2), found.group(3)


def check(module: ModuleType, wrong: dict[str, tuple[str, str]]) -> tuple[Report, dict[str, bool]]:
    """CrossHair on a module, and on its source with each wrong replacement: is that refuted and replayed?"""
    source = Path(inspect.getsourcefile(module) or "").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        shipped = start(module.__name__, folder)
        spoilt = {title: source.replace(*change) for title, change in wrong.items()}
        report: Report | None = None
        found = dict[str, bool]()
        for i, (title, text) in enumerate(spoilt.items()):
            file = Path(folder, f"wrong_{i}.py")
            file.write_text(text, encoding="utf-8")
            running = start(str(file), folder)
            names: dict[str, Any] = {}
            exec(compile(text, str(file), "exec"), names)
            report = report or judge(source, vars(module), finish(shipped))
            found[title] = text != source and bool(judge(text, names, finish(running)).refuted)
        return report or judge(source, vars(module), finish(shipped)), found
