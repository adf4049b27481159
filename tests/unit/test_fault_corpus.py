"""Every bug of the corpus has one place, and what the table says of the faults is what the faults say."""

import re
from collections import defaultdict

from kvproof.fuzz.faults import seeded
from kvproof.fuzz.faults.corpus import corpus
from kvproof.kernels.faults import all_faults


def test_each_of_the_126_bugs_has_exactly_one_place() -> None:
    bugs = corpus().bugs
    assert len(bugs) == len(set(bugs)) == 126
    assert all(re.fullmatch(r"KVB-\d{3}", bug) for bug in bugs)


def test_a_seeded_bug_is_named_by_its_faults_and_by_no_other() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for fault in seeded():
        for bug in fault.corpus:
            named[bug].append(fault.id)
    for planted in all_faults():
        for bug in planted.corpus:
            named[bug].append(planted.name)
    assert {bug: sorted(ids) for bug, ids in named.items()} == {
        bug: sorted(ids) for bug, ids in corpus().seeded.items()
    }


def test_faults_of_the_manager_and_of_the_kernels_have_names_of_their_own() -> None:
    assert not {fault.id for fault in seeded()} & {planted.name for planted in all_faults()}


def test_every_other_bug_has_a_reason() -> None:
    table = corpus()
    assert all(len(reason) > 3 for reason in (*table.later.values(), *table.unseen.values()))
    assert len(table.unseen) < 5
