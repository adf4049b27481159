"""Known bugs of released allocators: data, and when a finding is one of them.

They were shipped, not planted. Several fall under one clause and hide each other, so a
match is by the clause and by what the minimal case is made of.
"""

import tomllib
from collections.abc import Sequence
from importlib import resources

import msgspec

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case
from kvproof.spec import operations as op

FIELDS = {"adapters": "adapter", "salts": "salt", "items": "items", "embeddings": "embeddings"}
"""Key fields by the feature that they take, as extras name them."""


class KnownError(ValueError):
    """The known bugs cannot be read. The message is one sentence."""


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bug: the release on which it is hunted, `target`; those that have it, `shipped`; the first without.

    `needs` and `lacks` are kinds of operations.
    """

    id: str
    title: str
    clauses: tuple[str, ...]
    target: str
    shipped: str
    fixed: str = ""
    fields: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()

    @property
    def case(self) -> str:
        """The file of its minimal case in `fuzz/seeds/known`."""
        return f"{self.id}.json"

    def is_in(self, case: Case) -> bool:
        """Whether a minimal case shows this bug."""
        kinds = _kinds(case)
        same = case.expected.clause in self.clauses and fields_of(case) == self.fields
        return same and self.needs <= kinds and not self.lacks & kinds

    def may_be_in(self, case: Case) -> bool:
        """Whether a case may show this bug once it is minimal."""
        within = self.fields <= fields_of(case) and self.needs <= _kinds(case)
        return case.expected.clause in self.clauses and within


def _kinds(case: Case) -> frozenset[str]:
    return frozenset(type(operation).__name__.lower() for operation in case.operations)


def fields_of(case: Case) -> frozenset[str]:
    """The key fields, besides tokens, that the prompts of a case use."""
    extras = [operation.extras for operation in case.operations if isinstance(operation, op.Submit)]
    return frozenset(
        feature for feature, name in FIELDS.items() if any(getattr(each, name) for each in extras)
    )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    known: tuple[Known, ...]


def parse(text: str) -> tuple[Known, ...]:
    """The bugs of a TOML text of `[[known]]` tables. Raises `KnownError`."""
    try:
        read = msgspec.convert(tomllib.loads(text), _File).known
    except (tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise KnownError(f"the known bugs cannot be read: {str(error).rstrip('.')}.") from None
    seen: set[str] = set()
    for known in read:
        if known.id in seen:
            raise KnownError(f"two known bugs are called {known.id!r}.")
        seen.add(known.id)
    return read


def load() -> tuple[Known, ...]:
    """The bugs that ship with the harness."""
    return parse((resources.files(__package__) / "known.toml").read_text(encoding="utf-8"))


def select(only: Sequence[str]) -> tuple[Known, ...]:
    """Some of them by id, or all. Raises `KnownError`."""
    known = {each.id: each for each in load()}
    for name in only:
        if name not in known:
            raise KnownError(f"there is no known bug {name!r}; 'kvproof recall --list' names them.")
    return tuple(known[name] for name in dict.fromkeys(only)) or tuple(known.values())


def case_of(known: Known) -> Case:
    """Its minimal case. Raises `CaseError`."""
    file = resources.files("kvproof.fuzz.seeds") / "known" / known.case
    try:
        return cases.parse(file.read_bytes(), known.case)
    except OSError:
        raise cases.CaseError(f"there is no case {known.case} among the seeds.") from None
