"""replace_norms: what changes in a model, and what must not."""

import copy
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nk = pytest.importorskip("normkit.torch")
nn = torch.nn

from normkit.torch import replace_norms


class Llama(nn.Module):
    """The body of LlamaRMSNorm."""

    def __init__(self, width: int = 16, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Any) -> Any:
        h = hidden_states.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * h.to(hidden_states.dtype)


class LlamaNorm(Llama):
    """The same under a name by which it is found."""


class OutsideNorm(Llama):
    """The planted fault: eps outside of the root."""

    def forward(self, hidden_states: Any) -> Any:
        h = hidden_states.to(torch.float32)
        h = h / (h.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)
        return self.weight * h.to(hidden_states.dtype)


class GammaBetaNorm(nn.Module):
    """Other names, another shape, and eps under a third name."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, width).reshape(1, width))
        self.beta = nn.Parameter(torch.linspace(-0.5, 0.5, width).reshape(1, width))

    def forward(self, x: Any) -> Any:
        d = x - x.mean(-1, keepdim=True)
        return d / torch.sqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gamma + self.beta


class OffsetNorm(nn.Module):
    """Gemma's: the weight is stored less 1."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.2, 0.2, width))

    def forward(self, x: Any) -> Any:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (h * (1.0 + self.weight.float())).type_as(x)


class BufferNorm(nn.Module):
    """A frozen weight."""

    weight: Any

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("weight", torch.linspace(0.5, 1.5, width))

    def forward(self, x: Any) -> Any:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (h * self.weight.float()).type_as(x)


class ImageNorm(nn.Module):
    """Channels first, as in ConvNeXt."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.bias = nn.Parameter(torch.linspace(-0.5, 0.5, width))

    def forward(self, x: Any) -> Any:
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / torch.sqrt(var + 1e-6)
        return self.weight[:, None, None] * y + self.bias[:, None, None]


def model_of(*norms: Any, width: int = 16) -> Any:
    torch.manual_seed(0)
    parts = [part for norm in norms for part in (nn.Linear(width, width), norm)]
    return nn.Sequential(*parts, nn.Linear(width, 3))


def nontrivial(norm: Any) -> Any:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.linspace(0.5, 1.5, parameter.numel()).reshape(parameter.shape))
    return norm


def sample() -> Any:
    return torch.randn(5, 16, generator=torch.Generator().manual_seed(3)) * 3


KINDS = {
    "torch LayerNorm": lambda: nontrivial(nn.LayerNorm(16)),
    "torch LayerNorm without bias": lambda: nontrivial(nn.LayerNorm(16, bias=False)),
    "torch LayerNorm without parameters": lambda: nn.LayerNorm(16, elementwise_affine=False),
    "torch RMSNorm": lambda: nontrivial(nn.RMSNorm(16)),
    "torch RMSNorm with eps": lambda: nontrivial(nn.RMSNorm(16, eps=1e-3)),
    "llama": LlamaNorm,
    "gamma and beta": GammaBetaNorm,
    "1 + w": OffsetNorm,
    "buffer": BufferNorm,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_function_names_and_objects(kind: str) -> None:
    """Outputs to float32 noise; names, parameters and the way back are the very same."""
    model, x = model_of(KINDS[kind](), KINDS[kind]()).eval(), sample()
    modules, parameters = list(model.modules()), dict(model.named_parameters())
    keys, before = list(model.state_dict()), model(x)
    report = replace_norms(model, sample=x)
    assert [row.names for row in report.replaced] == [("1",), ("3",)], str(report)
    for at in (1, 3):
        assert isinstance(model[at], nk.RMSNorm | nk.LayerNorm)
    assert list(model.state_dict()) == keys
    assert all(p is parameters[name] for name, p in model.named_parameters())
    torch.testing.assert_close(model(x), before, rtol=1e-6, atol=2e-6)
    assert report.output_change is not None
    assert report.output_change.largest <= 2e-6
    report.undo()
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert torch.equal(model(x), before)
    report.undo()  # nothing is left to do


_FLOAT32_INSIDE = (LlamaNorm, OffsetNorm, BufferNorm)  # whatever x is


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_in_the_dtype_of_the_model(dtype: Any) -> None:
    norms = [KINDS["torch LayerNorm"](), KINDS["torch RMSNorm"](), LlamaNorm()]
    if dtype == torch.bfloat16:
        norms += [GammaBetaNorm(), OffsetNorm(), BufferNorm()]
    model = nn.ModuleList(norms).to(dtype)
    x = sample().to(dtype)
    before = [norm(x) for norm in norms]
    report = replace_norms(model)
    assert len(report.replaced) == len(norms), str(report)
    for row, old, new, y in zip(report.rows, norms, model, before, strict=True):
        assert row.compared is not None
        assert row.compared.dtypes == (str(dtype).removeprefix("torch."),)
        assert row.compared.rows == 6 * 30
        unit = torch.finfo(dtype).eps
        if dtype == torch.float64 and isinstance(old, _FLOAT32_INSIDE):
            unit = torch.finfo(torch.float32).eps
        torch.testing.assert_close(new(x), y, rtol=0, atol=8 * unit * y.abs().max().item())


def test_gradients_and_an_optimizer_from_before() -> None:
    torch.manual_seed(0)
    models = [model_of(nontrivial(nn.LayerNorm(16)), nn.RMSNorm(16), GammaBetaNorm())]
    models.append(copy.deepcopy(models[0]))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    report = replace_norms(models[1])
    assert len(report.replaced) == 3
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(sample()).square().mean().backward()
            optimizer.step()
    report.undo()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        # gradients of about 1 and three steps, in float32
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


def test_hooks_stay_and_are_not_called_by_the_comparison() -> None:
    model = model_of(nn.LayerNorm(16), nn.RMSNorm(16))
    seen: list[str] = []
    handles = [
        model[1].register_forward_hook(lambda *a: seen.append("forward")),
        model[1].register_forward_pre_hook(lambda *a: seen.append("pre")),
        model[3].register_full_backward_hook(lambda *a: seen.append("backward")),
    ]
    report = replace_norms(model)
    assert seen == []
    model(sample().requires_grad_()).sum().backward()
    assert seen == ["pre", "forward", "backward"]
    handles[1].remove()  # a handle from before
    model[1].register_forward_hook(lambda *a: seen.append("later"))
    seen.clear()
    model(sample())
    assert seen == ["forward", "later"]
    report.undo()
    seen.clear()
    model(sample())
    assert seen == ["forward", "later"]


def test_mode_requires_grad_and_state_survive_both_ways() -> None:
    model = model_of(nn.LayerNorm(16), LlamaNorm()).eval()
    model[1].weight.requires_grad_(False)
    old = model[1]
    report = replace_norms(model)
    assert not model[1].training
    assert not model[1].weight.requires_grad
    assert model[3].variance_epsilon == 1e-6  # its other attributes too
    model.train()
    model.to(torch.float64)
    # other Parameter objects in the same places
    model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()}, assign=True)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    report.undo()
    assert model[1] is old
    assert old.training
    assert old.bias.dtype == torch.float64
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in state.items())


def test_a_module_in_two_places_and_a_shared_parameter() -> None:
    norm, other = nontrivial(nn.LayerNorm(16)), nn.LayerNorm(16)
    other.weight = norm.weight
    model = nn.ModuleDict({"a": norm, "b": nn.ModuleList([norm, other])})
    report = replace_norms(model)
    assert [row.names for row in report.rows] == [("a", "b.0"), ("b.1",)]
    assert model["a"] is model["b"][0]
    assert model["a"].weight is model["b"][1].weight is norm.weight
    assert list(model) == ["a", "b"]
    report.undo()
    assert model["a"] is norm is model["b"][0]


def test_deepcopy_and_pickle_of_a_replaced_model() -> None:
    model = model_of(GammaBetaNorm(), OffsetNorm(), nn.LayerNorm(16))
    replace_norms(model)
    expected = model(sample())
    assert torch.equal(copy.deepcopy(model)(sample()), expected)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(sample()), expected)
    assert "gamma" not in repr(model[1])
    assert "convention='vitdet'" in repr(model[1])


def test_a_planted_fault_is_not_replaced() -> None:
    """eps outside of the root: left alone, with the place named; the outputs stay bit for bit."""
    model, x = model_of(OutsideNorm(eps=1e-3), LlamaNorm()), sample()
    before, old = model(x), model[1]
    report = replace_norms(model)
    assert model[1] is old
    (row,) = report.left
    assert row.names == ("1",)
    assert "eps is added outside of the root" in str(row.reason)
    assert "departs at" in str(row.reason)  # the input that shows it
    assert "left alone: 1 (OutsideNorm)" in str(report)
    assert model(x).sub(before).abs().max() < 2e-6


def test_a_fault_that_identify_does_not_meet_is_shown_by_its_input() -> None:
    """Alike to the eye of identify; the comparison on each module's own rows tells them apart."""

    class HiddenNorm(LlamaNorm):
        def __init__(self, extra: float) -> None:
            super().__init__()
            self.extra = [extra]

        def forward(self, hidden_states: Any) -> Any:
            return super().forward(hidden_states) * (1 + self.extra[0])

    model = model_of(HiddenNorm(0.0), HiddenNorm(1e-5))
    old = model[3]
    report = replace_norms(model)
    assert [row.names for row in report.replaced] == [("1",)]
    assert model[3] is old
    departure = report.left[0].departure
    assert departure is not None
    theirs = old(departure.input)[departure.index].item()
    ours = model[1](departure.input)[departure.index].item()  # the same weights
    assert theirs == departure.theirs
    assert ours == departure.ours
    assert abs(theirs / ours - 1) > 5e-6
    assert f"element {departure.index} is" in str(report.left[0].reason)
    assert replace_norms(model, verify=False).left[0].reason == "it is normkit's already"


def test_select() -> None:
    def fresh() -> Any:
        return model_of(nn.LayerNorm(16), Llama(), nn.RMSNorm(16))

    def replaced(**options: Any) -> list[str]:
        return [row.names[0] for row in replace_norms(fresh(), **options).replaced]

    assert replaced() == ["1", "5"]
    assert replaced(select="5") == ["5"]
    assert replaced(select=["[15]"]) == ["1", "5"]
    assert replaced(select=["3"]) == ["3"]  # no norm by its name, but named in full
    assert replaced(select=lambda name, module: isinstance(module, nn.LayerNorm)) == ["1"]
    with pytest.raises(ValueError, match=r"must be that of a norm; got '7', which fits none"):
        replaced(select=["7"])


def test_eps_outside_is_followed_where_it_is_meant() -> None:
    class PaperNorm(nn.Module):
        def forward(self, x: Any) -> Any:
            return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-4)

    model = model_of(PaperNorm())
    before = model(sample())
    assert "outside of the root" in str(replace_norms(model).left[0].reason)
    assert "tell its width" in str(replace_norms(model, select=["1"]).left[0].reason)
    (row,) = replace_norms(model, select=["1"], sample=sample()).replaced
    assert row.eps == 1e-4
    torch.testing.assert_close(model(sample()), before, rtol=0, atol=2e-6)


def test_a_dry_run_says_the_same_and_does_nothing() -> None:
    model = model_of(nn.LayerNorm(16), OutsideNorm())
    modules = list(model.modules())
    report = replace_norms(model, dry_run=True, sample=sample())
    assert len(report.replaced) == 1
    assert "1 of 2 norms would be replaced" in str(report)
    assert report.output_change is not None
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    json.dumps(report.as_dict())


def test_a_with_statement_undoes() -> None:
    model = model_of(nn.LayerNorm(16))
    with replace_norms(model) as report:
        assert isinstance(model[1], nk.LayerNorm)
        assert len(report.replaced) == 1
    assert type(model[1]) is nn.LayerNorm


def test_undo_refuses_where_something_else_stands() -> None:
    model = model_of(nn.LayerNorm(16))
    report = replace_norms(model)
    model[1] = nn.Identity()
    with pytest.raises(ValueError, match="at '1' there is another by now"):
        report.undo()


class GatedNorm(LlamaNorm):
    def forward(self, hidden_states: Any, gate: Any = None) -> Any:
        y = super().forward(hidden_states)
        return y if gate is None else y * gate


class PairNorm(LlamaNorm):
    def forward(self, hidden_states: Any) -> Any:
        return super().forward(hidden_states), hidden_states


class PartNorm(LlamaNorm):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)


def _patched() -> Any:
    norm = nn.LayerNorm(16)
    norm.forward = lambda x: x  # type: ignore[method-assign, assignment]
    return norm


def _parametrized() -> Any:
    norm = nn.LayerNorm(16)
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus())
    return norm


_LEFT = {
    "forward was replaced": _patched,
    "parametrized": _parametrized,
    "has parts with parameters: linear": PartNorm,
    "not a tensor": PairNorm,
    "follows no convention: statistics": lambda: nn.BatchNorm1d(16),
    "follows no convention": lambda: nn.GroupNorm(2, 16),
    "normkit's already": lambda: nk.LayerNorm(16),
}


@pytest.mark.parametrize("reason", _LEFT)
def test_left_alone_with_the_reason(reason: str) -> None:
    norm = _LEFT[reason]()
    model = nn.Sequential(norm)
    (row,) = replace_norms(model).left
    assert model[0] is norm
    assert reason in str(row.reason)


def test_called_with_more_than_x() -> None:
    """Only the sample shows how the model calls it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = GatedNorm()

        def forward(self, x: Any) -> Any:
            return self.norm(x, x)

    (row,) = replace_norms(Model(), sample=sample()).left
    assert row.reason == "the model calls it with more than x"


def test_held_outside_of_the_modules() -> None:
    """A list would go on calling the old one."""
    model = model_of(nn.LayerNorm(16), nn.LayerNorm(16))
    model.norms = [model[1]]
    (row,) = replace_norms(model).left
    assert row.reason == "norms holds it too, beside the modules of the model"


def test_a_model_that_is_a_norm() -> None:
    assert "it is the model itself" in str(replace_norms(nn.LayerNorm(16)).left[0].reason)


def test_channels_first_narrow_and_several_axes() -> None:
    model = nn.ModuleList(
        [ImageNorm(), nn.LayerNorm(4), nn.LayerNorm((3, 5)), nn.LayerNorm((2, 8))]
    )
    inputs = [torch.randn(2, 16, 3, 4), torch.randn(2, 4), torch.randn(7, 3, 5), torch.randn(2, 8)]
    before = [norm(x) for norm, x in zip(model, inputs, strict=True)]
    report = replace_norms(model)
    assert len(report.replaced) == 4, str(report)
    assert model[0].axis == 1
    for norm, x, y in zip(model, inputs, before, strict=True):
        torch.testing.assert_close(norm(x), y, rtol=1e-6, atol=1e-6)


def test_the_meta_device() -> None:
    with torch.device("meta"):
        model = model_of(nn.LayerNorm(16), LlamaNorm())
    report = replace_norms(model)
    assert len(report.replaced) == 2
    assert report.replaced[0].compared is None
    assert model[1].weight.is_meta


# LayerNorm to RMSNorm


@pytest.mark.parametrize("keep_bias", [False, True])
def test_layer_norm_to_rms_norm(keep_bias: bool) -> None:
    """The formula by hand; biases are dropped and come back."""
    norm, x = nontrivial(nn.LayerNorm(16, eps=1e-3)), sample()
    model = nn.Sequential(norm, nn.RMSNorm(16), nn.Identity())
    report = replace_norms(model, target="rms_norm", keep_bias=keep_bias, select=["0"], sample=x)
    assert isinstance(model[0], nk.RMSNorm)
    expected = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * norm.weight
    expected = expected + norm.bias if keep_bias else expected
    torch.testing.assert_close(model[0](x), expected, rtol=1e-6, atol=1e-6)
    assert report.dropped == (0 if keep_bias else 16)
    assert report.output_change is not None
    assert report.output_change.largest > 0.1
    assert ("bias" in dict(model[0].named_parameters())) == keep_bias
    model.double()
    report.undo()
    assert model[0] is norm
    assert norm.bias.dtype == torch.float64


def test_an_rms_norm_stays_and_normkits_layer_norm_does_not() -> None:
    model = nn.Sequential(nn.RMSNorm(16), nk.LayerNorm(16), GammaBetaNorm())
    report = replace_norms(model, target="rms_norm")
    assert [row.reason for row in report.left] == ["it is an RMSNorm already"]
    assert [type(m).__mro__[1].__name__ for m in model] == [
        "Module",
        "_CarriesOptions",
        "_OtherNames",
    ]
    assert list(model.state_dict()) == ["0.weight", "1.weight", "2.gamma"]
    assert report.dropped == 32


def test_torchs_encoder_layer_computes_its_norms_itself() -> None:
    """In evaluation it reads their weights and leaves the modules uncalled."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    report = replace_norms(layer, target="rms_norm")
    assert len(report.left) == 2
    assert "set_fastpath_enabled(False)" in str(report.left[0].reason)
    x = torch.randn(2, 3, 16)
    before = layer(x)
    assert len(replace_norms(layer).replaced) == 2
    torch.testing.assert_close(layer(x), before)


def test_errors_of_arguments() -> None:
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module"):
        replace_norms(nn.LayerNorm)
    with pytest.raises(ValueError, match=r"target must be None.*got 'layer_norm'"):
        replace_norms(model_of(), target="layer_norm")
    with pytest.raises(ValueError, match="keep_bias is for target"):
        replace_norms(model_of(), keep_bias=True)


# Wrapped models


@pytest.fixture
def process_group(tmp_path: Any) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_a_compiled_model() -> None:
    torch._dynamo.reset()
    model, x = model_of(nn.LayerNorm(16), nn.RMSNorm(16)), sample()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    before = compiled(x)
    calls: list[str] = []
    report = replace_norms(compiled)
    assert [row.names for row in report.replaced] == [("_orig_mod.1",), ("_orig_mod.3",)]
    model[1].register_forward_hook(lambda *a: calls.append("ours"))
    torch.testing.assert_close(compiled(x), before, rtol=0, atol=2e-6)
    assert torch.equal(compiled(x), model(x))
    report.undo()
    assert torch.equal(compiled(x), before)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_under_ddp(process_group: None) -> None:
    model = model_of(nn.LayerNorm(16), nn.RMSNorm(16))
    wrapped = nn.parallel.DistributedDataParallel(model)
    before = wrapped(sample())
    report = replace_norms(wrapped)
    assert [row.names for row in report.replaced] == [("module.1",), ("module.3",)]
    after = wrapped(sample())
    torch.testing.assert_close(after, before, rtol=0, atol=2e-6)
    after.sum().backward()
    assert model[1].weight.grad is not None


@pytest.mark.filterwarnings("ignore")
def test_under_fsdp_it_says_so(process_group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    model = model_of(nn.LayerNorm(16))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    fully_shard(model, mesh=mesh)
    with pytest.raises(ValueError, match=r"made of DTensors.*do it before fully_shard"):
        replace_norms(model)


class FullyShardedDataParallel(nn.Module):
    """Known by its name, as the real one wants an accelerator."""


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
def test_under_the_older_fsdp_and_torchscript_it_says_so() -> None:
    model = nn.Sequential(FullyShardedDataParallel(), nn.LayerNorm(4))
    with pytest.raises(ValueError, match=r"0 is wrapped by FSDP.*do it before it is wrapped"):
        replace_norms(model)
    scripted = torch.jit.trace(nn.LayerNorm(4), torch.ones(1, 4))
    with pytest.raises(ValueError, match="TorchScript"):
        replace_norms(nn.Sequential(scripted))
