"""How a history spells identities, so that what an encoding loses of them makes two of them one.

Rules tell prefixes apart by a letter in one key field, and most histories show it as it is. In others
it stands where a careless key doesn't look: behind a long common part, in letters outside ASCII, in
white space, above the lowest byte of a number, in the folders of a path. Two identities that differ
are spelled differently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from kvproof.fuzz.choices import Choices
from kvproof.spec import operations as op


def _same_text(text: str) -> str:
    return text


def _same_number(number: int) -> int:
    return number


@dataclass(frozen=True, slots=True)
class Spelling:
    """What becomes of the texts, numbers and paths of a request's extras. No salt stays none."""

    text: Callable[[str], str] = _same_text
    number: Callable[[int], int] = _same_number
    path: Callable[[str], str] = _same_text

    def of(self, extras: op.Extras) -> op.Extras:
        """The extras in this spelling."""
        adapter = extras.adapter
        return replace(
            extras,
            adapter=adapter
            and op.Adapter(self.text(adapter.name), self.number(adapter.id), self.path(adapter.path)),
            salt=extras.salt and self.text(extras.salt),
            items=tuple([replace(item, id=self.text(item.id)) for item in extras.items]),
            embeddings=tuple(
                [replace(each, content=self.number(each.content)) for each in extras.embeddings]
            ),
        )


def _outside_ascii(text: str) -> str:
    return "".join(chr(0x180 + ord(letter)) for letter in text)


def _in_white_space(text: str) -> str:
    bits = "".join(f"{ord(letter):08b}" for letter in text)
    return "x" + bits.replace("0", " ").replace("1", "\t")


PLAIN: Final = Spelling()
SPELLINGS: Final = {
    "long": Spelling(text=lambda text: f"of-many-letters-and-{text}"),
    "outside-ascii": Spelling(text=_outside_ascii),
    "white-space": Spelling(text=_in_white_space),
    "high": Spelling(number=lambda number: number << 8, path=lambda path: f"{path}/weights"),
}
"""The spellings beside the plain one, by name."""


def draw_spelling(c: Choices) -> Spelling:
    """Mostly the plain one."""
    return c.pick(tuple(SPELLINGS.values())) if c.chance(25) else PLAIN
