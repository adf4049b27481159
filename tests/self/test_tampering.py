"""Whatever is tampered with in true records, the oracle raises nothing, and finds most of it."""

from collections import Counter

from kvproof.fuzz.tampering import CHANGES, DECLARED, histories, tampered
from kvproof.spec.oracle import Oracle


def test_the_oracle_survives_it_and_each_kind_is_found() -> None:
    found = Counter(case.what for case in tampered(40, 7) if case.judge() is not None)
    assert found.keys() == CHANGES.keys()
    assert all(count >= 10 for count in found.values()), found


def test_what_is_tampered_with_was_true_before() -> None:
    for config, records in histories()[::8]:
        oracle = Oracle(config, DECLARED[0])
        for record in records:
            assert oracle.judge(record.operation, record.answer, record.observation) is None


def test_the_same_seed_tampers_alike_and_another_does_not() -> None:
    one, same, other = ([case.records for case in tampered(2, seed)] for seed in (1, 1, 2))
    assert one == same != other
