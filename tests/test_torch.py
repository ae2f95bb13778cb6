"""normkit.torch as a PyTorch user meets it."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import normkit.torch as nk
from torch import nn

from normkit.conventions import PRESETS
from normkit.testing import assert_same_bits


@pytest.fixture
def fresh_compiler() -> None:
    """The suite compiles these functions for more cases than the compiler keeps by default."""
    torch._dynamo.reset()


_PAIRS = [(nk.RMSNorm, nn.RMSNorm), (nk.LayerNorm, nn.LayerNorm)]
_FUNCTIONS = [nk.rms_norm, nk.layer_norm]


@pytest.mark.parametrize(("ours", "host"), _PAIRS)
def test_drop_in(ours: Any, host: Any) -> None:
    """isinstance, repr, constructor, state dict keys and the exchange of states both ways."""
    for arguments in ((4,), ((3, 4), 1e-3), ([4], 1e-3, False)):
        mine, theirs = ours(*arguments), host(*arguments)
        assert isinstance(mine, host)
        assert repr(mine) == repr(theirs)
        assert mine.state_dict().keys() == theirs.state_dict().keys()
        assert mine.normalized_shape == theirs.normalized_shape
        for p in theirs.parameters():
            nn.init.normal_(p)
        mine.load_state_dict(theirs.state_dict())
        theirs.load_state_dict(mine.state_dict())
        x = torch.randn(2, *theirs.normalized_shape)
        if theirs.eps is None:
            theirs.eps = 1e-6
        # float32 noise of the host: some ULPs of the row's largest element
        torch.testing.assert_close(mine(x), theirs(x), rtol=0, atol=2.0**-20 * float(x.abs().max()))


@pytest.mark.parametrize(("ours", "host"), _PAIRS)
def test_parameters_by_keyword(ours: Any, host: Any) -> None:
    mine = ours(4, device="cpu", dtype=torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in mine.parameters())
    assert sum(p.numel() for p in ours(4, elementwise_affine=False).parameters()) == 0
    assert ours(4, elementwise_affine=False).state_dict() == {}


def test_rms_norm_module_with_bias() -> None:
    layer = nk.RMSNorm(4, bias=True)
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert repr(layer) == "RMSNorm((4,), eps=None, elementwise_affine=True, bias=True)"
    assert nk.RMSNorm(4).bias is None
    with torch.no_grad():
        layer.bias.fill_(3)
    assert torch.equal(layer(torch.zeros(2, 4)), torch.full((2, 4), 3.0))


@pytest.mark.parametrize(("ours", "host"), _PAIRS)
def test_axis_serves_channels_first_images(ours: Any, host: Any) -> None:
    image = torch.randn(2, 8, 5, 6)
    layer = ours(8, axis=1)
    assert repr(layer).endswith(", axis=1)")
    nn.init.normal_(layer.weight)
    last = ours(8)
    last.load_state_dict(layer.state_dict())
    assert torch.equal(layer(image), last(image.movedim(1, -1)).movedim(-1, 1))
    assert repr(ours((8, 5), axis=(1, 2))).endswith(", axis=(1, 2))")


@pytest.mark.parametrize(("ours", "host"), _PAIRS)
def test_copies_and_meta_device(ours: Any, host: Any) -> None:
    layer = ours((3, 4), eps=1e-3, axis=(0, 2))
    nn.init.normal_(layer.weight)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=False)
    x = torch.randn(3, 2, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), saved):
        assert repr(other) == repr(layer)
        assert torch.equal(other(x), layer(x))
    options = {"bias": True} if ours is nk.RMSNorm else {}
    empty = ours(4, device="meta", **options)
    assert empty(torch.empty(2, 4, device="meta")).shape == (2, 4)
    empty = empty.to_empty(device="cpu")
    with torch.no_grad():
        empty.bias.fill_(7.0)  # as what was in the memory may be
    empty.reset_parameters()
    assert torch.equal(empty.weight, torch.ones(4))
    assert torch.equal(empty.bias, torch.zeros(4))
    assert torch.nn.utils.skip_init(ours, 4)(x).shape == x.shape


@pytest.mark.parametrize("function", _FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_does_not_change_the_result(function: Any, dtype: Any) -> None:
    x, w = torch.randn(3, 8, dtype=dtype), torch.randn(8)
    plain = function(x, w)
    with torch.autocast("cpu", torch.bfloat16):
        inside = function(x, w)
    assert inside.dtype == dtype
    assert torch.equal(inside, plain)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_compiled_function_and_gradients_have_eager_bits(function: Any) -> None:
    """No graph break, one opaque operator each way, the same bits."""
    x, w, b = (torch.randn(s, requires_grad=True) for s in ((16, 64), (64,), (64,)))
    dy = torch.randn(16, 64)
    compiled = torch.compile(function, fullgraph=True)
    results = []
    for run in (function, compiled):
        y = run(x, w, b)
        results.append([y.detach(), *torch.autograd.grad(y, (x, w, b), dy)])
    for eager, fused in zip(*results, strict=True):
        assert_same_bits(eager.numpy(), fused.numpy())


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("ours", "host"), _PAIRS)
def test_compiled_graph_holds_the_two_operators(ours: Any, host: Any) -> None:
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return torch._functorch.aot_autograd.make_boxed_func(graph.forward)

    layer = ours(4)
    compiled = torch.compile(
        layer, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep)
    )
    compiled(torch.randn(2, 4)).sum().backward()
    name = "rms_norm" if ours is nk.RMSNorm else "layer_norm"
    forward, backward = graphs
    assert forward == [f"normkit.{name}.default"]
    assert f"normkit.{name}_vjp.default" in backward


@pytest.mark.parametrize(
    ("name", "preset"),
    [("rms_norm", "standard"), ("layer_norm", "standard"), ("rms_norm", "llama")],
)
def test_operators_keep_their_promises(name: str, preset: str) -> None:
    """opcheck: schema, fake tensors, autograd and AOT registration, on awkward layouts."""
    operator = getattr(torch.ops.normkit, name)
    backward = getattr(torch.ops.normkit, f"{name}_vjp")
    convention = PRESETS[name][preset].convention.text
    tensors = [
        torch.randn(3, 4, requires_grad=True),
        torch.randn(4, 6, 5).permute(2, 0, 1),
        torch.randn(4, 6, dtype=torch.bfloat16)[:, ::2],
        torch.randn(4, 1).expand(4, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(0, 3),
        torch.randn(3),
    ]
    for x in tensors:
        axis = x.ndim - 1
        n = x.shape[axis]
        for w in (None, torch.rand(n, requires_grad=x.requires_grad)):
            torch.library.opcheck(operator, (x, w, w, 1e-6, [axis], convention, None))
            arguments = (
                torch.randn_like(x).detach(),
                x.detach(),
                w,
                None,
                1e-6,
                [axis],
                convention,
                None,
            )
            with torch.no_grad():
                torch.library.opcheck(
                    backward, arguments, test_utils=("test_schema", "test_faketensor")
                )


@pytest.mark.parametrize(("ours", "host"), _PAIRS)
def test_export_gives_ordinary_operations(ours: Any, host: Any) -> None:
    layer = ours(4)
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (torch.randn(2, 4),), dynamic_shapes=({0: batch},))
    assert not any("normkit" in str(n.target) for n in program.graph.nodes)
    x = torch.randn(7, 4)
    assert torch.equal(program.module()(x), layer(x))


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_transforms_and_subclasses_run_the_formula(function: Any) -> None:
    x, w = torch.randn(5, 3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(function, (0, None))(x, w), function(x, w))

    class Marked(torch.Tensor):
        pass

    marked = function(x.as_subclass(Marked), w)
    assert isinstance(marked, Marked)
    torch.testing.assert_close(marked.as_subclass(torch.Tensor), function(x, w))
    with torch.inference_mode():
        assert torch.equal(function(x, w), function(x, w))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("function", _FUNCTIONS)
def test_compiled_transforms(function: Any) -> None:
    """torch.compile around vmap of grad, float64 included, compiles in reasonable time."""
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def per_sample(w: Any, x: Any) -> Any:
        grad = torch.func.grad(lambda w, x: (function(x, w) ** 2).sum())
        return torch.func.vmap(grad, (None, 0))(w, x)

    compiled = torch.compile(per_sample, fullgraph=True)
    torch.testing.assert_close(compiled(w, x), per_sample(w, x), rtol=2.0**-46, atol=2.0**-46)


def test_vjp_functions_are_differentiable() -> None:
    for function, vjp in zip(_FUNCTIONS, (nk.rms_norm_vjp, nk.layer_norm_vjp), strict=True):
        dy, x, w = (torch.randn(s, dtype=torch.float64) for s in ((2, 4), (2, 4), (4,)))
        x.requires_grad_()
        (second,) = torch.autograd.grad(vjp(dy, x, w)[0].sum(), x)
        (first,) = torch.autograd.grad(function(x, w), x, dy, create_graph=True)
        (expected,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, expected, rtol=2.0**-46, atol=2.0**-46)


def test_gradient_buffers_are_left_alone() -> None:
    """The incoming gradient may serve a residual branch too, and a second backward pass."""
    x = torch.randn(4, 8, requires_grad=True)
    layer = nk.RMSNorm(8, bias=True)
    dy = torch.randn(4, 8)
    kept = dy.clone()
    y = layer(x) + x
    first = torch.autograd.grad(y, [x, *layer.parameters()], dy, retain_graph=True)
    second = torch.autograd.grad(y, [x, *layer.parameters()], dy)
    assert torch.equal(dy, kept)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_only_the_inputs_are_saved_for_backward() -> None:
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    x = torch.randn(64, 256, dtype=torch.bfloat16, requires_grad=True)
    layer = nk.RMSNorm(256)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        layer(x)
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), layer.weight.data_ptr()}


def test_numpy_scalar_eps_keeps_the_dtype() -> None:
    x = torch.ones(4)
    for eps in (np.float64(1e-6), np.float32(1e-6), np.array(1e-6), torch.tensor(1e-6)):
        assert nk.rms_norm(x, eps=eps).dtype == torch.float32
