"""Profiles: what they say of a layer, that a file is read as it was written, and every way a profile can be wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neusight.errors import DataError
from neusight.kernels.sparsity import LayerSparsity, OperandSparsity
from neusight.transforms.sparsity import DENSE, SparsityProfile

ONE = LayerSparsity(OperandSparsity(0.5, 0.123456789012, "slot"), OperandSparsity(1 / 3), OperandSparsity(0.0))
PROFILE = SparsityProfile(model="mine", layers={"a.0": ONE, 'b "ü"': DENSE}, source="measured")


def said(action: Any) -> str:
    """The one line of a mistake."""
    with pytest.raises(DataError) as raised:
        action()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_layer_is_found_by_its_whole_path() -> None:
    assert PROFILE.of("a.0") == ONE
    assert PROFILE.of("a") == PROFILE.of("a.0.b") == PROFILE.default == DENSE


@pytest.mark.parametrize("share", [-0.1, 1.01, float("nan"), "0.5", True, None])
@pytest.mark.parametrize("name", ["sparsity", "clustering"])
def test_shares_lie_between_0_and_1(name: str, share: Any) -> None:
    line = said(lambda: OperandSparsity(**({"sparsity": 0.5} | {name: share})))
    assert name in line
    assert repr(share) in line


def test_an_unknown_kind_of_group_names_the_nearest() -> None:
    assert "did you mean stream" in said(lambda: OperandSparsity(0.5, 0.1, "streams"))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = PROFILE.save(tmp_path / "new" / "p.json")
    assert SparsityProfile.load(path) == PROFILE
    assert json.loads(path.read_text())["protocol"] == 1
    assert max(map(len, path.read_text().splitlines())) <= 120
    uniform = SparsityProfile.uniform("weights=0.25")
    assert SparsityProfile.load(uniform.save(tmp_path / "u.json")) == uniform


def test_a_file_written_by_hand_may_leave_out_what_is_dense(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    layers = {"a": {"activations": {"sparsity": 0.6}}}
    path.write_text(json.dumps({"protocol": 1, "model": "m", "source": "s", "default": {}, "layers": layers}))
    profile = SparsityProfile.load(path)
    assert profile.of("a") == LayerSparsity(OperandSparsity(0.6), OperandSparsity(0.0), OperandSparsity(0.0))
    assert profile.default == DENSE


def wrong(path: Path, change: Any) -> str:
    content = json.loads(PROFILE.save(path).read_text())
    change(content)
    path.write_text(json.dumps(content))
    line = said(lambda: SparsityProfile.load(path))
    assert str(path) in line
    return line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(protocol=2), ["protocol 2 is not 1"]),
        (lambda c: c.pop("protocol"), ["protocol None"]),
        (lambda c: c.pop("model"), ["'model'"]),
        (lambda c: c.update(source=3), ["'source'"]),
        (lambda c: c.pop("layers"), ["'layers'"]),
        (lambda c: c.update(layers=[]), ["'layers'"]),
        (lambda c: c.pop("default"), ["'default'"]),
        (lambda c: c.update(layer={}), ["unknown key 'layer'", "did you mean layers"]),
        (lambda c: c["layers"].update(x=0.5), ["layer 'x'"]),
        (lambda c: c["layers"]["a.0"].update(weigths={}), ["'weigths' in layer 'a.0'", "did you mean weights"]),
        (lambda c: c["layers"]["a.0"]["weights"].update(sparsity=2), ["weights of layer 'a.0'", "not 2"]),
        (lambda c: c["layers"]["a.0"]["weights"].update(cluster="row"), ["weights of layer 'a.0'", "'row'"]),
        (lambda c: c["layers"]["a.0"]["weights"].update(share=1), ["unknown key 'share'"]),
        (lambda c: c["layers"]["a.0"]["weights"].pop("sparsity"), ["weights of layer 'a.0' has no 'sparsity'"]),
        (lambda c: c["default"].update(gradients=[]), ["gradients of 'default'"]),
    ],
)
def test_a_malformed_file_says_where(tmp_path: Path, change: Any, words: list[str]) -> None:
    line = wrong(tmp_path / "p.json", change)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("text", ["", "[1]", "{", "\xff"])
def test_something_else_than_a_profile(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("latin-1"))
    line = said(lambda: SparsityProfile.load(path))
    assert str(path) in line
    assert "neusight sparsity measure" in line


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    line = said(lambda: SparsityProfile.load(tmp_path / "none.json"))
    assert "none.json" in line
    assert "neusight sparsity measure" in line


def test_uniform_gives_every_layer_the_same() -> None:
    profile = SparsityProfile.uniform("activations=0.6, gradients=0.5,weights=0")
    assert profile.of("anything") == LayerSparsity(OperandSparsity(0.6), OperandSparsity(0.5), OperandSparsity(0.0))
    assert profile.source == "assumed: activations=0.6, gradients=0.5,weights=0"
    assert SparsityProfile.uniform("weights=1").of("x").activations == OperandSparsity(0.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("activation=0.6", ["unknown operand 'activation'", "did you mean activations"]),
        ("weights=0,gradients=1.5", ["'1.5'", "'gradients=1.5'", "between 0 and 1"]),
        ("weights=-0.1", ["'-0.1'"]),
        ("weights=nan", ["'nan'"]),
        ("weights=half", ["'half'", "between 0 and 1"]),
        ("weights=", ["''", "'weights='"]),
        ("weights", ["cannot read 'weights'", "activations=0.6"]),
        ("", ["cannot read ''"]),
        ("weights=0,", ["cannot read ''"]),
        ("weights=0,weights=1", ["'weights=1'", "again"]),
    ],
)
def test_uniform_says_what_is_wrong_and_where(text: str, words: list[str]) -> None:
    line = said(lambda: SparsityProfile.uniform(text))
    assert all(word in line for word in words), line


def test_check_passes_the_models_own_layers_in_any_order() -> None:
    PROFILE.check(['b "ü"', "a.0", "a.0"])
    SparsityProfile.uniform("weights=0.5").check(["anything"])


def test_check_names_layers_that_do_not_match() -> None:
    profile = SparsityProfile(model="mine", layers={"features.0": DENSE, "features.3": DENSE})
    unknown = said(lambda: profile.check(["features.0", "features.30"]))
    assert "unknown features.3; did you mean" in unknown
    assert "missing features.30" in unknown
    assert "mine" in unknown
    missing = said(lambda: profile.check([f"features.{i}" for i in range(9)]))
    assert "unknown" not in missing
    assert "missing features.1, features.2, features.4 and 4 more" in missing


def test_profiles_need_no_torch() -> None:
    code = "import neusight.transforms.sparsity as s; s.SparsityProfile.uniform('weights=1')"
    code += "; import sys; print({'torch', 'transformers', 'numba'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_profiles_and_the_accelerator_load_in_either_order() -> None:
    rooms = ("transforms.sparsity", "executors.tensordash")
    for first, second in (rooms, rooms[::-1]):
        code = f"import neusight.{first}, neusight.{second}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
