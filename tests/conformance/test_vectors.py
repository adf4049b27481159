"""Conformance vectors: the reference shows their facts, and whoever breaks them is seen."""

from importlib import resources

import msgspec
import pytest

from kvproof.fuzz import vectors
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.targets import make_adapter
from kvproof.fuzz.vectors import Fact, Vector
from kvproof.spec import operations as op
from kvproof.spec.oracle import BY_CODE

VECTORS = vectors.bundled()
FOLDER = resources.files("kvproof.spec.cases") / "vectors"


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
def test_the_reference_shows_the_facts(vector: Vector) -> None:
    assert vectors.run(ReferenceAdapter(), vector).result == "valid"


def test_index_files_and_schema_agree() -> None:
    files = {file.name.removesuffix(".json") for file in FOLDER.iterdir()} - {"index", "schema"}
    assert {vector.id for vector in VECTORS} == files and len(VECTORS) == len(files) > 40
    schema = msgspec.json.decode((FOLDER / "schema.json").read_bytes())
    assert schema == msgspec.json.decode(msgspec.json.encode(vectors.schema()))
    assert {vector.version for vector in VECTORS} == {vectors.VERSION}


def test_no_fact_names_a_block() -> None:
    assert set(Fact.__struct_fields__) == {
        "after", "refused", "hit", "least_hit", "most_hit", "blocks", "most_blocks", "shared", "counted",
    }  # fmt: skip


def test_every_clause_has_a_vector() -> None:
    assert {vector.clause for vector in VECTORS} == set(BY_CODE)


def test_who_counts_a_refused_admission_is_invalid() -> None:
    (vector,) = [each for each in VECTORS if each.id == "counted-once-though-refused-before-4"]
    with planted([by_id("counted-at-lookup")]):
        seen = vectors.run(ReferenceAdapter(), vector)
    assert seen.result == "invalid"
    assert "counted" in seen.reason


@pytest.mark.parametrize("fault", ["full-hit", "adapter-is-salt", "stale-hash", "lookahead-uncovered"])
def test_a_faulty_allocator_is_invalid_on_some_vector(fault: str) -> None:
    with planted([by_id(fault)]):
        results = [vectors.run(ReferenceAdapter(), vector).result for vector in VECTORS]
    assert "invalid" in results


class Shy(ReferenceAdapter):
    """Never takes a hit, which is safe and of little use."""

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        self._requests[request].read_cache = False
        return super().admit(request, n, lookahead)


def test_an_allocator_that_never_hits_is_acceptable_and_none_of_it_invalid() -> None:
    results = [vectors.run(Shy(level=2), vector) for vector in VECTORS]
    assert {seen.result for seen in results if seen.result != "skipped"} <= {"valid", "acceptable", "invalid"}
    assert any(seen.result == "acceptable" for seen in results)
    broken = [seen for seen in results if seen.result == "invalid"]
    assert broken == []


class Stingy(ReferenceAdapter):
    """Refuses whatever would leave fewer than two blocks free."""

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        if self.manager.block_pool.get_num_free_blocks() < 2:
            return op.Refused()
        return super().admit(request, n, lookahead)


def test_a_refusal_of_what_fits_without_any_hit_is_invalid() -> None:
    results = [vectors.run(Stingy(level=2), vector) for vector in VECTORS]
    refused = [seen for seen in results if seen.reason.endswith("a grant expected, a refusal seen")]
    assert "invalid" in {seen.result for seen in refused}


def test_a_grant_of_what_the_reference_defers_is_acceptable_where_the_stream_orders_it() -> None:
    results = {v.id: vectors.run(make_adapter("variant:stream-ordered"), v) for v in VECTORS}
    assert "invalid" not in {seen.result for seen in results.values()}
    early = results["released-in-stream-order"]
    assert (early.result, early.reason) == (
        "acceptable",
        "operation 5: a refusal expected, a grant seen",
    )


@pytest.mark.parametrize("name", ["all-back", "publish-at-retire", "swap"])
def test_a_correct_variant_is_invalid_on_no_vector(name: str) -> None:
    results = {vectors.run(make_adapter(f"variant:{name}"), vector).result for vector in VECTORS}
    assert "invalid" not in results and "valid" in results


def test_a_vector_that_needs_what_is_not_there_is_skipped_with_the_reason() -> None:
    poor = ReferenceAdapter()
    poor.capabilities = msgspec.structs.replace(poor.capabilities, features=())
    reasons = {seen.reason for seen in (vectors.run(poor, vector) for vector in VECTORS) if seen.reason}
    assert "the allocator has no lookahead" in reasons
