"""Traces: read strictly, served to the block as definition D4 says, with the oracle on."""

import gzip
import json
from collections import OrderedDict
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.fuzz.cli.errors import HarnessFault
from kvproof.fuzz.cli.phases import run_workload
from kvproof.fuzz.cli.profiles import profile
from kvproof.fuzz.engines import traces
from kvproof.fuzz.engines.traces import (
    BUNDLED,
    Line,
    Trace,
    TraceError,
    bundled,
    expected,
    prompts,
    read_trace,
)
from kvproof.fuzz.engines.workload import run
from kvproof.fuzz.faults import by_id, planted
from kvproof.spec.operations import count_of, runs_of


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(bundled())


def simulate(trace: Trace, blocks: int, limit: int) -> tuple[int, int]:
    """Definition D4 in its plainest form: hit blocks and evictions."""
    free = OrderedDict((block, None) for block in range(blocks))
    key_of: dict[int, int] = {}
    index: dict[int, list[int]] = {}
    hits = evictions = 0
    for line in trace.lines[:limit]:
        row = []
        for key in line.hash_ids[: (line.input_length - 1) // trace.block_size]:
            if not index.get(key):
                break
            row.append(index[key][0])
        hits += len(row)
        for block in row:
            del free[block]
        for _ in range(-(-line.input_length // trace.block_size) - len(row)):
            block, _ = free.popitem(last=False)
            if block in key_of:
                evictions += 1
                index[key_of.pop(block)].remove(block)
            row.append(block)
        for block, key in zip(row, line.hash_ids[: line.input_length // trace.block_size], strict=False):
            if block not in key_of:
                key_of[block] = key
                index.setdefault(key, []).append(block)
        unkeyed = [block for block in reversed(row) if block not in key_of]
        free.update((block, None) for block in reversed(row))
        for block in reversed(unkeyed):
            free.move_to_end(block, last=False)
    return hits, evictions


def test_the_bundled_trace_is_whole_and_has_recorded_numbers(trace: Trace) -> None:
    assert len(trace.lines) == 2000
    assert expected(trace)[1000] == (2265, 49298) and expected(trace)[20000] == (14952, 17611)
    assert all(count_of(tokens) == line.input_length for line, tokens in prompts(trace))


def test_the_plain_simulation_agrees_with_the_recorded_numbers(trace: Trace) -> None:
    for blocks in (1000, 20000):
        assert simulate(trace, blocks, 2000) == expected(trace)[blocks]


REQUESTS = {
    "mooncake_conversation_2k": 2_000,
    "mooncake_conversation": 12_031,
    "mooncake_synthetic": 3_993,
    "claude_code_sessions": 2_898,
}


@pytest.mark.parametrize("name", BUNDLED)
def test_every_trace_that_ships_is_whole_and_named_in_the_expected_numbers(name: str) -> None:
    whole = read_trace(bundled(name))
    assert len(whole.lines) == REQUESTS[name]
    assert whole.name == name
    assert len(expected(whole)) >= 6
    assert [line.timestamp for line in whole.lines] == sorted(line.timestamp for line in whole.lines)


def test_coding_sessions_share_nothing_with_each_other_and_much_with_themselves() -> None:
    sessions = read_trace(bundled("claude_code_sessions"))
    assert sessions.block_size == 64
    blocks = 1600
    result = run(sessions, blocks, limit=40)
    assert result.violation is None
    assert (result.hit_blocks, result.evictions) == simulate(sessions, blocks, 40)
    assert result.hit_blocks > 1_000


def test_a_partial_block_without_an_id_belongs_to_its_request_alone() -> None:
    trace = Trace("twins", 4, [Line(6, 1, (0,)), Line(6, 1, (0,)), Line(6, 1, (0, 9))])
    tails = [list(runs_of(tokens))[-1] for _, tokens in prompts(trace)]
    assert [length for _, length in tails] == [2, 2, 2]
    assert len({start for start, _ in tails}) == 3


SESSION = {"block_size": 64, "requests": [{"in": 65, "out": 1, "t": 0.5, "hash_ids": [7]}]}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([SESSION, {**SESSION, "block_size": 32}], "line 2 has blocks of 32, not 64"),
        ([SESSION, {"block_size": 64}], "line 2 is not a session"),
        (
            [{**SESSION, "requests": [{"in": 65, "out": 1, "t": 0, "hash_ids": []}]}],
            "line 1, request 1 has 0 block ids for 65 tokens",
        ),
    ],
)
def test_a_broken_session_is_one_sentence(tmp_path: Path, rows: list[object], words: str) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(TraceError, match=words):
        read_trace(path)


@pytest.mark.parametrize("blocks", [300, 1000])
def test_hits_and_evictions_are_those_of_the_definition(trace: Trace, blocks: int) -> None:
    result = run(trace, blocks, limit=300)
    assert result.violation is None and result.requests == 300
    assert (result.hit_blocks, result.evictions) == simulate(trace, blocks, 300)


def test_a_stale_index_is_noticed_though_only_touched_blocks_are_observed(trace: Trace) -> None:
    result = run(trace, 300, limit=300)
    with planted([by_id("stale-hash")]):
        faulty = run(trace, 300, limit=300)
    assert result.violation is None
    assert faulty.violation is not None and faulty.violation.code == "KV-I2-key"


GOOD = {"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [0, 1]}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "holds no request"),
        ([json.dumps(GOOD), '{"timestamp": 0, "input_le'], "line 2 is not a request"),
        ([json.dumps(GOOD), ""], "line 2 is not a request"),
        ([json.dumps({**GOOD, "hash_ids": [0]})], "line 1 has 1 block ids for 513 tokens, not 2"),
        ([json.dumps({**GOOD, "input_length": "many"})], "line 1 is not a request"),
        ([json.dumps({"input_length": 1, "output_length": 1})], "hash_ids"),
        ([json.dumps({**GOOD, "input_length": 0, "hash_ids": []})], "line 1 has 0 block ids"),
    ],
)
def test_a_broken_trace_is_one_sentence(tmp_path: Path, rows: list[str], words: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows) + ("\n" if rows else ""))
    with pytest.raises(TraceError, match=words) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


def test_a_packed_trace_that_breaks_off_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode())[:-12])
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(path)
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path / "absent.jsonl")


def test_a_prompt_that_does_not_fit_goes_unserved_and_the_trace_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    small = {**GOOD, "input_length": 10, "hash_ids": [0]}
    path.write_text("\n".join(json.dumps(row) for row in (small, GOOD, small)))
    result = run(read_trace(path), 1)
    assert result.requests == 3 and result.violation is None


@pytest.mark.parametrize(
    ("hits", "evictions", "verdict"), [(0, 0, "holds"), (1, 0, "violated"), (0, 1, "violated")]
)
def test_the_phase_is_violated_by_one_hit_or_eviction_that_the_definition_does_not_have(
    monkeypatch: pytest.MonkeyPatch, trace: Trace, hits: int, evictions: int, verdict: str
) -> None:
    short = Trace("short", trace.block_size, trace.lines[:60])
    right = simulate(short, 300, 60)
    assert min(right) > 0
    monkeypatch.setattr(traces, "read_trace", lambda path: short)
    monkeypatch.setattr(traces, "expected", lambda of: {300: (right[0] + hits, right[1] + evictions)})
    wanted = replace(profile("quick"), traces={"mooncake_conversation_2k": ()})
    phase = run_workload(wanted, 0, lambda text: None)
    assert phase.verdict == verdict and phase.count == "60 requests"
    (test,) = phase.tests
    assert ("where definition D4 says" in test.message) == (verdict == "violated")


def test_a_capacity_without_recorded_numbers_is_a_fault_of_the_harness() -> None:
    wanted = replace(profile("quick"), traces={"mooncake_conversation_2k": (3,)})
    with pytest.raises(HarnessFault, match="no numbers for mooncake_conversation_2k with 3 blocks"):
        run_workload(wanted, 0, lambda text: None)
