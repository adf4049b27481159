"""Adapters for Python allocators that were released by somebody else, and the loader under them."""

import sys

import pytest

from kvproof import CacheConfig, Session, make_adapter, soak
from kvproof import operations as op
from kvproof.fuzz.session import IllegalOperation
from kvproof.fuzz.targets import TargetError, TargetSkipped
from kvproof.fuzz.targets.load import Absent, load, module


def adapter_of(target):
    """An adapter, or a skip with the reason."""
    try:
        return make_adapter(target)
    except TargetSkipped as reason:
        pytest.skip(str(reason))


HOLDING = [
    "tokasaurus",
    "transformers",
    "transformers==5.24.0+blocks",
    "transformers==5.24.0+layers",
]


@pytest.mark.parametrize("target", HOLDING)
def test_a_correct_release_holds(target):
    adapter_of(target)
    result = soak(6_000, 3, adapter=lambda: make_adapter(target))
    assert result.case is None, result.case
    assert result.operations >= 6_000


def test_a_replay_of_a_release_is_the_same_run():
    adapter_of("tokasaurus")
    runs = [soak(2_000, 5, adapter=lambda: make_adapter("tokasaurus")).digest for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("seed", range(5))
def test_voxcpm_is_violated_by_a_run_that_is_told_nothing(seed):
    adapter_of("nano-vllm-voxcpm")
    result = soak(20_000, seed, adapter=lambda: make_adapter("nano-vllm-voxcpm"))
    assert result.case is not None
    assert result.case.expected.clause == "KV-I2-hit"


def test_a_release_that_does_not_exist_is_an_error_or_a_skip():
    with pytest.raises(TargetError):
        make_adapter("tokasaurus==0.0.0")


def test_an_unknown_layout_is_refused():
    with pytest.raises(TargetError, match="no layout"):
        make_adapter("transformers==5.24.0+sideways")


# --- what they declare ----------------------------------------------------------------------


def session_of(target, **config):
    return Session(adapter_of(target), CacheConfig(**{"blocks": 8, "block_size": 2, **config}))


def test_tokasaurus_grants_a_prompt_at_once_and_takes_no_grant_back():
    session = session_of("tokasaurus")
    session.apply(op.Submit("a", (1, 2, 3)))
    with pytest.raises(IllegalOperation, match="at once"):
        session.apply(op.Admit("a", 2))
    session.apply(op.Admit("a", 3))
    with pytest.raises(IllegalOperation, match="take back"):
        session.apply(op.Finish("a"))


@pytest.mark.parametrize(
    ("submit", "feature"),
    [
        (op.Submit("a", (1,), op.Extras(adapter=op.Adapter("x"))), "adapters"),
        (op.Submit("a", (1,), op.Extras(salt="x")), "salts"),
        (op.Submit("a", (1,), op.Extras(items=(op.Item("x", 0, 1),))), "items"),
        (op.Submit("a", (1,), op.Extras(embeddings=(op.Embedding(0, 1),))), "embeddings"),
        (op.Submit("a", (1,), options=op.Options(read_cache=False)), "opt_out"),
    ],
)
def test_what_an_allocator_lacks_is_not_asked_of_it(submit, feature):
    with pytest.raises(IllegalOperation, match=feature):
        session_of("tokasaurus").apply(submit)


def test_lookahead_is_not_asked_of_an_allocator_without_it():
    session = session_of("transformers")
    session.apply(op.Submit("a", (1, 2, 3)))
    with pytest.raises(IllegalOperation, match="lookahead"):
        session.apply(op.Admit("a", 3, 1))


def twins(session):
    """Two requests with one prompt compute it side by side; the answer of the retirement."""
    for name in "ab":
        session.apply(op.Submit(name, (1, 2, 3)))
        session.apply(op.Admit(name, 3))
    session.apply(op.Dispatch(1, (op.Entry("a", 3), op.Entry("b", 3))))
    return session.apply(op.Retire(1, (op.Output("a", (4,)), op.Output("b", (4,)))))


def test_a_duplicate_is_swapped_for_the_older_block_and_free_at_once():
    session = session_of("transformers", blocks=4)
    answer = twins(session)
    rows = {life.request: life.rows[0] for life in session.state.living()}
    assert list(answer.swapped) == ["b"]
    assert rows["b"][0] == rows["a"][0] and rows["b"][1] != rows["a"][1]
    session.apply(op.Submit("c", (7, 8)))
    session.apply(op.Admit("c", 2))
    assert session.violation is None and len(session.state.holders) == 4


@pytest.mark.parametrize("row", [(0, 2), (2, 9)])
def test_a_swap_for_no_block_of_the_pool_is_found(row):
    session = session_of("transformers")
    adapter, retire = session.adapter, session.adapter.retire
    adapter.retire = lambda operation: op.Retired(swapped={**retire(operation).swapped, "a": (row,)})
    twins(session)
    assert session.violation is not None and session.violation.code == "KV-I3-stable"


def test_a_swap_that_was_not_declared_is_found():
    adapter = adapter_of("transformers")
    adapter.capabilities = type(adapter.capabilities)(publish="retire", stream_ordered=True, depth=2)
    session = Session(adapter, CacheConfig(blocks=8, block_size=2))
    twins(session)
    assert session.violation is not None and session.violation.code == "KV-I3-stable"


# --- the loader -----------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path):
    """A release whose package cannot be imported, with one module that can."""
    folder = tmp_path / "kvfake-1.0"
    (folder / "kvfake" / "core" / "sub").mkdir(parents=True)
    (folder / "kvfake" / "__init__.py").write_text("raise ImportError('no GPU')")
    (folder / "kvfake" / "core" / "__init__.py").write_text("raise ImportError('no server')")
    (folder / "kvfake" / "core" / "sub" / "__init__.py").write_text("VALUE = 3\n")
    (folder / "kvfake" / "core" / "helpers.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "kvfake" / "core" / "blocks.py").write_text(
        "import kvabsent.deep as deep\nimport kvgiven\nfrom kvabsent import Thing\n"
        "from .helpers import double\nfrom .sub import VALUE\n"
        "class Pool(Thing):\n    kind: deep.Kind\n    size = double(kvgiven.number) + VALUE\n"
    )
    yield folder
    for name in [name for name in sys.modules if name.startswith("loaded.kvfake")]:
        del sys.modules[name]


def load_fake(folder):
    (made,) = load(
        folder, ["kvfake.core.blocks"], absent=["kvabsent"], given={"kvgiven": module("kvgiven", number=4)}
    )
    return made


def test_a_module_is_loaded_without_its_package(package):
    made = load_fake(package)
    assert made.Pool.size == 11
    assert isinstance(made.deep, Absent)


def test_loading_leaves_no_module_behind_but_under_its_own_name(package):
    before = {*sys.modules}
    load_fake(package)
    left = {*sys.modules} - before
    assert left and all(name.startswith("loaded.kvfake_1_0.kvfake") for name in left)


def test_two_releases_stand_side_by_side(package, tmp_path):
    first = load_fake(package)
    other = package.rename(tmp_path / "kvfake-2.0")
    (other / "kvfake" / "core" / "helpers.py").write_text("def double(x):\n    return 20 * x\n")
    assert (first.Pool.size, load_fake(other).Pool.size) == (11, 83)


def test_what_was_imported_before_comes_back(package, monkeypatch):
    installed = module("kvfake")
    monkeypatch.setitem(sys.modules, "kvfake", installed)
    load_fake(package)
    assert sys.modules["kvfake"] is installed


def test_what_is_missing_and_not_named_is_an_error(package):
    with pytest.raises(TargetError, match="kvabsent"):
        load(package, ["kvfake.core.blocks"])
    with pytest.raises(TargetError, match="nowhere"):
        load(package, ["kvfake.core.nowhere"])


def test_an_absent_module_has_classes_and_no_secrets():
    absent = Absent("kvabsent")
    assert absent.Thing is absent.Thing and isinstance(absent.Thing, type)
    with pytest.raises(AttributeError):
        absent.__wrapped__  # noqa: B018
