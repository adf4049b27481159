"""The biography of a block: what a history did with it, who claims it, what it must hold.

Derived from the records alone: the state is followed anew, and what the allocator showed
of the block is compared before and after each record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvproof.fuzz.device import Digests
from kvproof.fuzz.reports.wording import plural, span
from kvproof.spec import operations as op
from kvproof.spec.content import DRAFT, LOST, PENDING, POISON, Path, Runs
from kvproof.spec.state import Life, State, Step
from kvproof.spec.transitions import Effects, apply
from kvproof.spec.vocabulary import CacheConfig, Capabilities

_SPECIAL = {
    POISON: "nothing written",
    PENDING: "a token that is not sampled yet",
    DRAFT: "a draft that was not accepted",
    LOST: "a token that nobody learned",
}


@dataclass(frozen=True)
class Fact:
    """One line of a biography: the number of the record, from 1, and what happened to the block."""

    record: int
    text: str


@dataclass(frozen=True)
class Seen:
    """What the allocator shows of a block: its count and key, its key in the index, whether it is free."""

    count: int | None = None
    key: bytes | None = None
    listed: bytes | None = None
    free: bool | None = None


@dataclass(frozen=True)
class Stand:
    """The positions of a prefix that a key stands for."""

    path: Path
    start: int
    stop: int


class Chronicle:
    """A history followed record by record, with an eye on one block (or on none)."""

    def __init__(self, config: CacheConfig, capabilities: Capabilities, block: int | None) -> None:
        self.state = State(config, capabilities)
        self.block = block
        self.facts: list[Fact] = []
        self.seen = Seen(free=True)
        self._paths: list[tuple[str, Path]] = []
        self.listed: dict[str, int] = {}
        """The first digits of each key that was ever in the index, and the block last seen under it."""
        self._stands: dict[str, Stand] = {}
        self._drafts: dict[int, str] = {}

    @classmethod
    def of(
        cls, config: CacheConfig, capabilities: Capabilities, records: Sequence[op.Record], block: int | None
    ) -> "Chronicle":
        """Follow a whole history."""
        chronicle = cls(config, capabilities, block)
        for number, record in enumerate(records, 1):
            chronicle.follow(number, record)
        return chronicle

    def follow(self, number: int, record: op.Record) -> None:
        """Take one record."""
        if isinstance(record.operation, op.Dispatch):
            self._note_drafts(record.operation)
        steps, holders = list(self.state.steps), self._holders()
        effects = apply(self.state, record.operation, record.answer)
        if isinstance(record.operation, op.Submit):
            self._name(record.operation)
        self._learn(record.observation)
        if self.block is None:
            return
        parts = [
            *self._grants(effects),
            *self._steps(effects),
            *self._endings(effects, steps, holders),
            *self._sight(record.observation),
        ]
        if parts:
            self.facts.append(Fact(number, "; ".join(parts)))

    # --- names ----------------------------------------------------------------------------

    def _name(self, submit: op.Submit) -> None:
        """A request in its current use; its earlier uses get a name of their own."""
        if submit.request not in self.state.requests:  # the allocator raised an error instead
            return
        path = self.state.requests[submit.request].paths[0]
        earlier = f"the former {submit.request}"
        self._paths = [(earlier if name == submit.request else name, each) for name, each in self._paths]
        self._paths.append((submit.request, path))

    def whose(self, claim: int) -> tuple[str, int] | None:
        """`(request, position)` of a claim: its owner in the block's eyes, or the latest that has it."""
        place = self.state.places.get(self.block or 0)
        owner = place[0].paths[0] if place else None
        latest = list(reversed(self._paths))
        for name, path in sorted(latest, key=lambda named: named[1] is not owner):
            for position in range(path.length):
                if path.at(position) == claim:
                    return name, position
        return None

    def whose_token(self, token: int, offset: int) -> str | None:
        """The position with this token: of the prefix that the block's key stands for, or a former one."""
        stand = self._stands.get(short(self.seen.listed))
        if stand is not None and self._token(stand.path, stand.start + offset) == token:
            return f"position {stand.start + offset} of {self._owner(stand.path)}"
        found = [
            f"position {position} of {name}"
            for name, path in self._paths
            for position in range(path.length)
            if name.startswith("the former ") and self._token(path, position) == token
        ]
        return found[0] if len(found) == 1 else None

    def _token(self, path: Path, position: int) -> int:
        return self.state.claims.origin(path.at(position))[1]

    def _owner(self, path: Path) -> str:
        return next((name for name, each in self._paths if each is path), "nobody")

    def stands(self, key: str) -> str:
        """What a key, by its first digits, stands for; nothing if it was never seen."""
        stand = self._stands.get(key)
        return f"{span(stand.start, stand.stop)} of {self._owner(stand.path)}" if stand else ""

    def content(self, runs: Runs) -> str:
        """A content in words: whose positions, or why nobody's."""
        parts: list[tuple[str, int, int]] = []
        for claim, count in runs:
            for i in range(count):
                who = self.whose(claim + i) if claim > POISON else None
                name, position = who or (_SPECIAL.get(claim, "a prefix that nobody has"), -1)
                if parts and parts[-1][0] == name and position in (-1, parts[-1][2]):
                    parts[-1] = (name, parts[-1][1], parts[-1][2] + 1)
                else:
                    parts.append((name, position, position + 1))
        return ", then ".join(
            name if start < 0 else f"{span(start, stop)} of {name}" for name, start, stop in parts
        )

    def digests(self) -> dict[int, str]:
        """What each claim digest stands for: a request's position, a draft, a padding row."""
        table, source = {0: "a padding row"}, Digests()
        for name, path in self._paths:
            for position in range(path.length):
                claim = path.at(position)
                table[source.of(claim, self.state.claims)] = f"position {position} of {name}"
        for claim, text in self._drafts.items():
            table.setdefault(source.of(claim, self.state.claims), text)
        return table

    def _note_drafts(self, dispatch: op.Dispatch) -> None:
        for entry in dispatch.entries:
            life = self.state.requests[entry.request].life
            if life is None or life.grant is None or not 0 < life.grant.stop <= life.known:
                continue
            claim = life.paths[0].at(life.grant.stop - 1)
            for i, token in enumerate(entry.drafts):
                claim = self.state.claims.after(claim, token)
                self._drafts[claim] = f"draft {token} at position {life.grant.stop + i} of {entry.request}"

    def _learn(self, observation: op.Observation | None) -> None:
        """What each key stands for, from the place of the block on which it first appears."""
        size = self.state.config.block_size
        for entry in observation.index if observation else ():
            for block in entry.blocks:
                self.listed[short(entry.key)] = block
                if (place := self.state.places.get(block)) is not None:
                    life, group, index = place
                    stand = Stand(life.paths[group], index * size, (index + 1) * size)
                    self._stands.setdefault(short(entry.key), stand)

    # --- what happened --------------------------------------------------------------------

    def _grants(self, effects: Effects) -> Iterator[str]:
        life, size = effects.life, self.state.config.block_size
        if life is None or life.ended:
            return
        for block, _, index in effects.handed:
            if block == self.block:
                yield f"handed out to {life.request} for {span(index * size, (index + 1) * size)}"
        for block, _, index in effects.hits:
            if block == self.block:
                yield f"hit by {life.request} for {span(index * size, (index + 1) * size)}"
        if effects.before and life.grant is not None and any(self.block in row for row in effects.before):
            for write in self.state.writes.get(self.block or 0, ()):
                if write.life is life and write.step is None:
                    yield f"{life.request} may write {span(write.start, write.stop)} in it"

    def _steps(self, effects: Effects) -> Iterator[str]:
        for step, reads, writes in (
            (effects.dispatched, "is to read it", "is to write"),
            (effects.retired, "has read it", "wrote"),
        ):
            for entry in step.entries if step else ():
                size = self.state.config.block_size
                end = entry.stop + len(entry.drafts)
                for row in entry.rows:
                    for index, block in enumerate(row):
                        if block != self.block or index * size >= end:
                            continue
                        first, last = max(entry.start, index * size), min(end, (index + 1) * size)
                        number, name = step.number if step else 0, entry.life.request
                        if first < last:
                            yield f"step {number} {writes} {span(first, last)} of {name} in it"
                        else:
                            yield f"step {number} {reads} for {name}"

    def _holders(self) -> set[int]:
        return set(self.state.holders.get(self.block, ())) if self.block is not None else set()

    def _endings(self, effects: Effects, steps: Sequence[Step], before: set[int]) -> Iterator[str]:
        after = self._holders()
        left = plural(len(after), "holder") + " left" if after else "nobody holds it"
        if before - after and not after - before:
            life = effects.life
            who = life.request if effects.ended and life is not None else "the ended life"
            yield f"{who} lets it go, {left}"
        elif effects.ended and effects.life is not None and effects.life.number in after:
            fence = effects.life.fence
            yield f"{effects.life.request} has ended; it must stay held until step {fence} retires"
        if effects.ended and self.block in self.state.withdrawn:
            yield "a promised write to it is discarded"

    def _sight(self, observation: op.Observation | None) -> Iterator[str]:
        """What the allocator shows of the block, where it changed."""
        if observation is None or self.block is None:
            return
        view = observation.blocks.get(self.block)
        if view is None:
            return
        listed = next((entry.key for entry in observation.index if self.block in entry.blocks), None)
        free = None if observation.free is None else self.block in observation.free
        old, new = self.seen, Seen(view.ref_cnt, view.key, listed, free)
        self.seen = new
        yield from self._keys(old, new)
        if (old.count or 0) != (new.count or 0):
            yield f"ref_cnt {old.count or 0} → {new.count}"
        if old.free is not None and new.free is not None and old.free != new.free:
            place = observation.free.index(self.block) + 1 if observation.free and new.free else 0
            yield f"enters the free queue as number {place}" if new.free else "leaves the free queue"

    def _keys(self, old: Seen, new: Seen) -> Iterator[str]:
        if old.key == new.key and old.listed == new.listed:
            return
        own, listed = short(new.key), short(new.listed)
        if new.key is not None and new.key == new.listed:
            yield f"keyed {own} for {self.stands(own)}"
        elif new.key is None and new.listed is None:
            yield f"key {short(old.listed or old.key)} removed"
        elif new.key is None:
            yield f"loses its own key, but the index still lists it under {listed}"
        elif new.listed is None:
            yield f"has key {own}, but the index does not list it"
        else:
            yield f"has key {own}, but the index lists it under {listed}"

    # --- how it stands --------------------------------------------------------------------

    def standing(self) -> list[tuple[str, str]]:
        """How it stands with the block at the end: labels and words."""
        if self.block is None:
            return []
        lives = [self.state.lives[number] for number in sorted(self._holders()) if number in self.state.lives]
        holders = [self._holding(life) for life in lives]
        lines = [("held by", ", ".join(holders) or "nobody")]
        if self.seen.count is not None:
            queue = {True: ", in the free queue", False: ", outside the free queue", None: ""}[self.seen.free]
            lines.append(("shows", f"ref_cnt {self.seen.count}{queue}"))
        if (key := self.seen.listed or self.seen.key) is not None:
            stands = self.stands(short(key)) or "nothing that the history knows"
            lines.append(("key", f"{short(key)}, which stands for {stands}"))
        if 1 <= self.block <= self.state.config.blocks:
            lines.append(("holds", self.content(self.state.content(self.block))))
        return lines

    def _holding(self, life: Life) -> str:
        size = self.state.config.block_size
        places = [row.index(self.block) for row in life.rows if self.block in row]
        what = f" ({span(places[0] * size, (places[0] + 1) * size)})" if places else ""
        return f"{life.request}{', which has ended' if life.ended else ''}{what}"


def short(key: bytes | None) -> str:
    """The first eight digits of a key."""
    return key.hex()[:8] if key is not None else "none"
