"""Public bug reports turned into tests: tests/data/bug_reports.json names each, its symptom and link.

Each test covers the fault's kind on every backend it applies to, with the right values of that file.
What other files test already is named in `_ELSEWHERE`.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import normkit.numpy
import numpy as np
import pytest
from backends import Subject
from oracles import EXACT, EXACT_VJP

import normkit
from normkit.testing import MAX_ULP, assert_same_bits, assert_ulp, contract_floor, dtype_of

_REPORTS = {
    report["id"]: report
    for report in json.loads(
        (Path(__file__).parent / "data" / "bug_reports.json").read_text(encoding="utf-8")
    )
}

_ELSEWHERE = {
    "B08": "test_numpy.test_default_eps",
    "B11": "test_errors.test_message",
    "B22": "test_accuracy.test_any_pair_of_dtypes",
    "B24": "test_torch.test_autocast_does_not_change_the_result",
    "B26": "test_derivatives.test_gradients_are_the_same_for_strided_and_expanded_dy",
    "B30": "test_errors.test_message",
    "B31": "test_shapes.test_any_axes_in_any_order",
    "B35": "test_derivatives.test_torch_second_jvp_at_a_known_point",
    "B37": "test_derivatives.test_torch_gradcheck",
    "B38": "test_derivatives.test_torch_higher_derivatives",
    "B42": "test_torch.test_gradient_buffers_are_left_alone",
    "B45": "test_errors.test_message",
    "B50": "test_torch.test_export_gives_ordinary_operations",
    "B51": "test_flax.test_global_x64_flag_is_neither_read_nor_changed",
    "B55": "test_torch.test_copies_and_meta_device",
    "B58": "test_accuracy.test_hard_inputs",
    "B59": "test_numpy.test_typed_eps_keeps_the_dtype",
    "B61": "test_sharding.test_split_arrays_give_the_bits_of_the_whole",
    "B62": "test_torch.test_only_the_inputs_are_saved_for_backward",
}


def test_every_report_has_a_test() -> None:
    here = {name.split("_")[1].upper() for name in globals() if name.startswith("test_b")}
    assert here | set(_ELSEWHERE) == set(_REPORTS)
    assert not here & set(_ELSEWHERE)
    for place in _ELSEWHERE.values():
        module, test = place.split(".")
        assert hasattr(importlib.import_module(module), test), place


def _right(report: str, key: str) -> Any:
    """The right value that the report's file states."""
    return np.array(_REPORTS[report]["expected"]["computed"][key])


def _check(backend: Subject, op: str, x: Any, eps: float, stated: Any = None) -> Any:
    """Against the oracle at the contract's bound, and against the stated digits, of which 7 count."""
    y = backend.run(op, x, eps=eps)
    exact = EXACT[op](x, eps=eps)
    assert_ulp(y, exact, floor=contract_floor(x, exact))
    if stated is not None:
        # the file prints 7 digits, and a dtype has its own rounding
        digits = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(x.dtype.name, 2.0**-24)
        error = np.abs(y.astype(np.float64) - stated)
        assert np.all(error <= np.abs(stated) * (digits + 1e-6) + 1e-12)
    return y


def test_b01_float16_squares_do_not_overflow(backend: Subject) -> None:
    if "float16" in backend.dtypes:
        x = np.float16([300, -300, 300, 200])
        _check(backend, "rms_norm", x, 1e-6, _right("B01", "expected"))


@pytest.mark.parametrize("size", [1e20, 1e25, 1.5e38])
def test_b02_float32_squares_do_not_overflow(backend: Subject, size: float) -> None:
    x = (np.float64([1, -1, 2, 0]) * size).astype(np.float32)
    for op, name in (("rms_norm", "rms"), ("layer_norm", "ln")):
        _check(backend, op, x, 1e-6, _right("B02", f"expected {name} {size:g}"))
    if size == 1e20:
        dy = np.float32([1, 2, 3, 4])
        dx, _, _ = backend.gradients("rms_norm", dy, x, None, None, eps=1e-6)
        assert np.abs(dx / _right("B02", "expected rms dx at 1e20 (dy=1,2,3,4)") - 1).max() < 1e-5


def test_b04_float16_variance_does_not_overflow(backend: Subject) -> None:
    if "float16" in backend.dtypes:
        x = np.float16([-600, 600, -500, 500])
        _check(backend, "layer_norm", x, 1e-5, _right("B04", "expected"))


def test_b05_eps_below_float16_is_kept(backend: Subject, op: str, dtype: str) -> None:
    zeros, threes = np.zeros(4, dtype_of(dtype)), np.full(4, 3, dtype_of(dtype))
    assert backend.run(op, zeros, eps=1e-12).tolist() == [0, 0, 0, 0]
    expected = 1 if op == "rms_norm" else 0
    assert backend.run(op, threes, eps=1e-12).astype(float).round(9).tolist() == [expected] * 4


def test_b09_eps_is_inside_the_root(backend: Subject) -> None:
    x = np.full(4, 1e-4, np.float32)
    _check(backend, "rms_norm", x, 1e-6, _right("B09", "expected eps inside"))


def test_b10_eps_is_not_inflated_beside_a_spike(backend: Subject, op: str) -> None:
    x = np.full((2, 1024), 0.01, np.float32)
    x[0, 0], x[1] = 50, 0
    y = _check(backend, op, x, 1e-5)
    assert np.all(y[1] == 0)
    if op == "rms_norm":
        assert np.abs(y[0, :2] / _right("B10", "expected y[0], y[1]") - 1).max() < 1e-6


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_b13_eps_travels_with_the_parameters(name: str, tmp_path: Any) -> None:
    """In the metadata: the keys stay torch.nn's. Another eps is not taken over, but told."""
    torch = pytest.importorskip("torch")
    layer_type = getattr(pytest.importorskip("normkit.torch"), name)
    trained = torch.nn.Sequential(layer_type(4, eps=1e-3))
    assert trained.state_dict().keys() == torch.nn.Sequential(
        torch.nn.LayerNorm(4)
    ).state_dict().keys() - ({"0.bias"} if name == "RMSNorm" else set())
    torch.save(trained.state_dict(), tmp_path / "trained.pt")
    state = torch.load(tmp_path / "trained.pt", weights_only=True)
    with pytest.warns(UserWarning, match=r"0\.\w+Norm should have the eps .* 0\.001; it has 1e-06"):
        torch.nn.Sequential(layer_type(4, eps=1e-6)).load_state_dict(state)
    same = torch.nn.Sequential(layer_type(4, eps=1e-3))
    same.load_state_dict(state)  # warnings are errors here
    if name == "RMSNorm":
        y = same(torch.full((4,), 0.01))
        assert abs(y.detach().numpy() - _right("B13", "expected (src eps 1e-3)")).max() < 1e-6


@pytest.mark.parametrize("offset", [3000, 50000, 90000, 1e6, 4e6])
def test_b14_large_mean(backend: Subject, offset: float) -> None:
    x = (np.float64([1, 0, 3, 2]) + offset).astype(np.float32)
    y = _check(backend, "layer_norm", x, 1e-5, _right("B14", f"expected {offset:g}"))
    order = [2, 0, 3, 1]
    assert_same_bits(backend.run("layer_norm", x[order], eps=1e-5), y[order])


@pytest.mark.parametrize("value", [777.0, 777.7, 3333.333])
def test_b15_constant_row(backend: Subject, value: float) -> None:
    x = np.full(250, value, np.float32)
    assert np.all(backend.run("layer_norm", x, eps=1e-5) == 0)


def test_b16_variance_is_not_negative(backend: Subject) -> None:
    x = np.float32([-11.000002, -10.999998, -11.0])
    _check(backend, "layer_norm", x, 1e-5, _right("B16", "expected"))


def test_b18_ten_million_elements(backend: Subject, op: str) -> None:
    """Against float64 with a compensated mean: the result may differ by its own rounding only."""
    if backend.label.startswith("core-"):
        pytest.skip("the adapters cover the kind; the core's frameworks would only cost time")
    i = np.arange(10**7, dtype=np.int64)
    x = (1 + 0.001 * ((i * 7919) % 1009) / 1009).astype(np.float32)
    wide = x.astype(np.float64)
    if op == "layer_norm":
        wide -= wide.mean()
        wide -= wide.mean()
    expected = wide / np.sqrt((wide * wide).mean() + 1e-5)
    assert np.abs(backend.run(op, x, eps=1e-5) - expected).max() < 5e-7


def test_b19_scale_is_multiplied_before_the_one_rounding(backend: Subject) -> None:
    if "bfloat16" not in backend.dtypes:
        return
    x = np.arange(1, 65).reshape(8, 8).astype(dtype_of("bfloat16"))
    scale = np.linspace(0.75, 1.5, 8).astype(dtype_of("bfloat16"))
    y = backend.run("rms_norm", x, scale, eps=1e-6)
    exact = EXACT["rms_norm"](x, scale, eps=1e-6)
    assert_ulp(y, exact, MAX_ULP)
    rounded_twice = EXACT["rms_norm"](x, eps=1e-6).rounded("bfloat16") * scale
    assert (rounded_twice != y).sum() > 5


def test_b20_offset_is_added_in_float32(backend: Subject) -> None:
    """gemma stores scale - 1: in bfloat16 the sum would lose the small learned part."""
    random = np.random.default_rng(0)
    x = random.integers(1, 99, (64, 8)).astype(dtype_of("bfloat16"))
    scale = random.uniform(-0.2, 0.2, 8).astype(x.dtype)
    if "bfloat16" not in backend.dtypes:
        pytest.skip("the backend has no bfloat16")
    y = backend.run("rms_norm", x, scale, eps=1e-6, convention="gemma")
    exact = EXACT["rms_norm"](x, np.float32(1) + scale.astype(np.float32), eps=1e-6)
    assert_same_bits(y, exact.rounded("bfloat16"))


def test_b21_offset_reaches_the_gradients(backend: Subject) -> None:
    x, scale = np.float32([1, 2, 3, 4]), np.float32([0.1, -0.2, 0.3, 0.0])
    options = {"eps": 0.0, "convention": "gemma"}
    y = backend.run("rms_norm", x, scale, **options)
    assert np.abs(y - _right("B21", "expected y")).max() < 1e-6
    shifted = backend.run("rms_norm", x, scale + 1, eps=0.0, convention="gemma4")
    assert_ulp(shifted, y, 1.0)  # the same but for the sum's own rounding
    dx, dscale, _ = backend.gradients("rms_norm", 2 * y, x, scale, None, **options)
    assert np.abs(dx - [0.0117334, -0.280533, 0.4192, -0.177066]).max() < 2e-6
    assert np.abs(dscale - [0.293333, 0.853333, 3.12, 4.26667]).max() < 1e-5


@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16", "float32", "float64"])
def test_b23_one_rule_for_all_pairs(
    backend: Subject, op: str, dtype: str, scale_dtype: str
) -> None:
    if scale_dtype in backend.dtypes:
        x = np.array([[1, 2, 3, 4]] * 2).astype(dtype_of(dtype))
        scale = np.array([1, 2, 1, 2]).astype(dtype_of(scale_dtype))
        y = backend.run(op, x, scale, eps=0.0)
        assert y.dtype == x.dtype
        exact = EXACT[op](x, scale, eps=0.0)
        assert_ulp(y, exact, floor=contract_floor(x, exact, scale))


@pytest.mark.parametrize("rows", [1, 7, 1025])
@pytest.mark.parametrize("width", [1, 3, 31, 33, 100])
def test_b28_odd_row_counts_and_widths(backend: Subject, op: str, rows: int, width: int) -> None:
    if backend.label.startswith("core-"):
        pytest.skip("the adapters cover the kind; the core's frameworks would only cost time")
    random = np.random.default_rng(rows + width)
    x = (random.standard_normal((rows, width)) + 3).astype(np.float32)
    scale, dy = random.standard_normal(width).astype(np.float32), x[::-1].copy()
    y = backend.run(op, x, scale)
    if backend.exact_bits:
        assert_same_bits(y, getattr(normkit.numpy, op)(x, scale))
    found = backend.gradients(op, dy, x, scale, None)
    expected = getattr(normkit.numpy, f"{op}_vjp")(
        dy.astype(np.float64), x.astype(np.float64), scale.astype(np.float64)
    )
    for actual, wanted in zip(found[:2], expected[:2], strict=True):
        assert np.abs(actual - wanted).max() <= 2.0**-22 * np.abs(wanted).max()


def test_b32_mean_of_squares_not_variance(backend: Subject) -> None:
    x = np.arange(1, 9).astype(np.float32)
    y = _check(backend, "rms_norm", x, 0.001)
    assert np.abs(y[[0, 7]] / _right("B32", "expected") - 1).max() < 1e-6


def test_b34_bits_do_not_depend_on_the_batch(backend: Subject, op: str) -> None:
    x = np.random.default_rng(34).standard_normal((300, 1000)).astype(np.float32)
    y = backend.run(op, x)
    for k in (1, 2, 7, 64, 255):
        assert_same_bits(backend.run(op, x[:k]), y[:k])


def test_b40_every_parameter_gets_its_gradient(backend: Subject, op: str) -> None:
    random = np.random.default_rng(40)
    x, dy = random.standard_normal((2, 3, 4)).astype(np.float32)
    scale, bias = random.standard_normal((2, 4)).astype(np.float32)
    for given in ((scale, bias), (scale, None), (None, bias)):
        found = backend.gradients(op, dy, x, *given)
        expected = EXACT_VJP[op](dy, x, *given, eps=1e-6 if op == "rms_norm" else 1e-5)
        for actual, wanted in zip(found, expected, strict=True):
            assert (actual is None) == (wanted is None)
            if wanted is not None:
                assert_ulp(actual, wanted, floor=2.0**-40)


def test_b41_zero_scale(backend: Subject) -> None:
    x, scale = np.float32([[1, 2, 3, 4]]), np.float32([1, 0, 2, 1])
    dx, dscale, _ = backend.gradients("rms_norm", np.ones_like(x), x, scale, None, eps=1e-6)
    assert np.abs(dx - _right("B41", "expected dx")).max() < 1e-6
    assert np.abs(dscale - _right("B41", "expected dW")).max() < 1e-6


@pytest.mark.parametrize("width", [8, 64])
def test_b44_compiled_gradient_of_chained_norms(width: int) -> None:
    torch = pytest.importorskip("torch")
    layer_norm = importlib.import_module("normkit.torch").layer_norm
    torch._dynamo.reset()
    table = torch.randn(6 * width, requires_grad=True)
    x = torch.randn(33, width)

    def model(table: Any, x: Any) -> Any:
        shift, scale, gate, shift2, scale2, gate2 = table.chunk(6)
        x = x + gate * (layer_norm(x) * (1 + scale) + shift)
        return x + gate2 * (layer_norm(x) * (1 + scale2) + shift2)

    (eager,) = torch.autograd.grad(model(table, x).sum(), table)
    (fused,) = torch.autograd.grad(torch.compile(model, fullgraph=True)(table, x).sum(), table)
    # sums of 33 float32 products in the compiler's own order
    assert (eager - fused).abs().max() <= 1e-5 * eager.abs().max()


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_b46_batch_sizes_compile_twice_at_most(name: str) -> None:
    torch = pytest.importorskip("torch")
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    layer = getattr(importlib.import_module("normkit.torch"), name)(8)
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for batch in (2, 3, 4, 5):
        compiled(torch.randn(batch, 8))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("weight_dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the exporter's
def test_b49_onnx_export_keeps_eps_and_loads(name: str, weight_dtype: str, tmp_path: Any) -> None:
    """eps 1e-8 is 0 in float16, and a float16 input beside a float32 weight has no operator."""
    torch = pytest.importorskip("torch")
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layers = pytest.importorskip("normkit.torch")
    layer = getattr(layers, name)(4, eps=1e-8).to(getattr(torch, weight_dtype)).eval()
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float16)
    path = str(tmp_path / "norm.onnx")
    torch.onnx.export(layer, (x,), dynamo=True, verbose=False).save(path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_same_bits(y, layer(x).detach().numpy())
    assert not y[1].any()


def test_b53_a_row_of_nan_stays_in_its_row_of_dx(backend: Subject, op: str) -> None:
    """dscale sums over all rows and is NaN, as 0 NaN is: mask such rows before the norm."""
    x = np.float32([[1, 2, 3, 4], [np.nan] * 4])
    dy = np.float32([[1, 1, 1, 1], [0, 0, 0, 0]])
    scale = np.ones(4, np.float32)
    dx, dscale, _ = backend.gradients(op, dy, x, scale, None, eps=1e-6)
    alone = backend.gradients(op, dy[:1], x[:1], scale, None, eps=1e-6)
    assert_same_bits(dx[:1], alone[0])
    assert np.isnan(dscale).all()
    if op == "rms_norm":
        masked = _right("B53", "expected dW with row masked out")
        assert np.abs(alone[1] - masked).max() < 1e-6


def test_b54_names_are_changed_inside_norms_only() -> None:
    """A layer scale is called gamma, too, and a projection may be called after it."""
    names = ["norm.gamma", "norm.beta", "block.gamma", "gamma_proj.weight"]
    state = {tuple(name.split(".")): np.ones(4) for name in names}
    there = normkit.rename_state(state, "keras", "torch", norms=[("norm",)], kind="layer_norm")
    expected = ["norm.weight", "norm.bias", "block.gamma", "gamma_proj.weight"]
    assert [".".join(steps) for steps in there] == expected
    back = normkit.rename_state(there, "torch", "keras", norms=[("norm",)], kind="layer_norm")
    assert list(back) == list(state)
    assert all(back[k] is state[k] for k in state)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_b56_nested_tensors(op: str) -> None:
    torch = pytest.importorskip("torch")
    function = getattr(importlib.import_module("normkit.torch"), op)
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for part, result in zip(parts, function(jagged).unbind(), strict=True):
        assert torch.equal(result, function(part))
    text = r"^x must be a dense or jagged tensor; got layout torch.sparse_coo; call x.to_dense\(\)"
    with pytest.raises(TypeError, match=text):
        function(torch.eye(3).to_sparse())


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_b64_without_parameters(name: str) -> None:
    torch = pytest.importorskip("torch")
    layers = importlib.import_module("normkit.torch")
    for width, dtype in ((4, torch.float32), (4096, torch.bfloat16)):
        x = torch.randn(3, width, dtype=dtype, requires_grad=True)
        bare = getattr(layers, name)(width, elementwise_affine=False)
        full = getattr(layers, name)(width)
        results = []
        for layer in (bare, full):
            y = layer(x)
            results.append((y, torch.autograd.grad(y.sum(), x)[0]))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
        assert list(bare.parameters()) == []
        assert bare.state_dict() == {}


def test_b65_bfloat16_sums_do_not_saturate(backend: Subject) -> None:
    if "bfloat16" not in backend.dtypes:
        return
    ones = np.ones((1, 4096), dtype_of("bfloat16"))
    assert np.all(backend.run("rms_norm", ones, eps=1e-6) == 1)
    cycle = (np.arange(4096) % 5 - 2).astype(dtype_of("bfloat16"))
    for op in ("rms_norm", "layer_norm"):
        _check(backend, op, cycle, 1e-6)


def test_b66_half_types_are_rounded_once(backend: Subject, op: str, dtype: str) -> None:
    if dtype not in ("bfloat16", "float16"):
        return
    random = np.random.default_rng(0)
    x = random.standard_normal((64, 12)).astype(dtype_of(dtype))
    scale, bias = random.standard_normal((2, 12)).astype(dtype_of(dtype))
    for given in ((None, None), (scale, bias)):
        exact = EXACT[op](x, *given, eps=1e-5)
        y = backend.run(op, x, *given, eps=1e-5)
        assert_ulp(y, exact, floor=contract_floor(x, exact, *given))
        assert (y != exact.rounded(dtype)).sum() <= 2  # near ties
