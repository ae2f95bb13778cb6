"""fold_centering and fold_scale on small models: the same outputs, and refusals with the reason."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nk = pytest.importorskip("normkit.torch")
nn = torch.nn

from normkit.torch import fold_centering, fold_scale

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 24)
        self.down = nn.Linear(24, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        return x + self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))


class PostBlock(Block):
    """The norm after the addition."""

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.down(torch.tanh(self.up(x))))


class LeakyBlock(Block):
    """A branch that reads the stream without a norm."""

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(self.norm(x)) + self.up(x)))


class Model(nn.Module):
    """A pre-norm transformer without attention, its last layer tied to the embedding."""

    def __init__(self, block: Any = Block, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(11, WIDTH)
        self.positions = nn.Parameter(torch.randn(6, WIDTH))
        self.blocks = nn.ModuleList([block(), block()])
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        self.eval()

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


WRITERS = ("tokens", "positions", "blocks.*.down")
NORMS = ("blocks.*.norm", "last")
READERS = {"blocks.0.norm": ["blocks.0.up"], "blocks.1.norm": ["blocks.1.up"], "last": ["head"]}
IDS = torch.arange(12).reshape(2, 6) % 11


def state(model: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def layer_norms(model: Any) -> int:
    return sum(isinstance(module, nn.LayerNorm) for module in model.modules())


def test_fold_centering_of_a_described_model() -> None:
    """Proved inside, and here in float64; writers have no mean, and all comes back."""
    model = Model().double()
    before, saved, modules = model(IDS), state(model), list(model.modules())
    embedding = model.tokens.weight
    report = fold_centering(model, writers=WRITERS, norms=NORMS, sample=IDS)
    assert layer_norms(model) == 0
    assert sum(isinstance(m, nk.RMSNorm) for m in model.modules()) == 3
    assert (model(IDS) - before).abs().max() <= 1e-12 * before.abs().max()
    assert report.proof is not None
    assert report.proof.relative <= 1e-12
    for mean in (
        model.tokens.weight.mean(1),
        model.positions.mean(-1),
        model.blocks[1].down.weight.mean(0),
        model.blocks[1].down.bias.mean(),
    ):
        assert mean.abs().max() < 1e-15
    assert list(model.state_dict()) == list(saved)
    # the last layer keeps the embedding's numbers, and its Parameter
    assert report.untied == ("tokens.weight from head.weight",)
    assert model.head.weight is embedding
    assert torch.equal(embedding, saved["tokens.weight"])
    report.undo()
    assert model.tokens.weight is model.head.weight is embedding
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(IDS), before)


@pytest.mark.parametrize(
    ("dtype", "bar"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)], ids=["float32", "bfloat16"]
)
def test_fold_centering_in_other_dtypes(dtype: Any, bar: float) -> None:
    """Each weight is rounded once: 2^-24 and 2^-8 of it; a few layers and the logits add up."""
    model = Model(tied=False).to(dtype)
    before = model(IDS)
    writer = model.blocks[0].down.weight
    report = fold_centering(model, writers=WRITERS, norms=NORMS, sample=IDS)
    assert report.untied == ()
    assert model.blocks[0].down.weight is writer  # in place, for an optimizer
    assert writer.dtype == dtype
    assert (model(IDS) - before).abs().max() <= bar * before.abs().max()
    assert report.output_change is not None
    assert report.output_change.relative <= bar
    assert report.proof is not None
    assert report.proof.relative <= 1e-12


def test_a_gradient_step_after_the_fold() -> None:
    """The folded model is trained as any other."""
    model = Model()
    fold_centering(model, writers=WRITERS, norms=NORMS, sample=IDS)
    model(IDS).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def refused(model: Any, **options: Any) -> str:
    saved, modules = state(model), list(model.modules())
    given: dict[str, Any] = {"writers": WRITERS, "norms": NORMS, "sample": IDS, **options}
    with pytest.raises(ValueError, match="must") as error:
        fold_centering(model, **given)
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    return str(error.value)


def test_refused_after_the_addition() -> None:
    text = refused(Model(PostBlock))
    assert "norm reads rows whose mean is" in text
    assert "post-norm" in text


def test_refused_where_a_branch_reads_without_a_norm() -> None:
    assert "something reads it without a norm" in refused(Model(LeakyBlock))


def test_refused_where_a_writer_is_missing() -> None:
    text = refused(Model(), writers=("tokens", "blocks.*.down"))
    assert "blocks.0.norm reads rows whose mean is" in text


def test_refused_where_dropout_is_active() -> None:
    text = refused(Model().train())
    assert "blocks.0.dropout drops elements in training; call model.eval()" in text


def test_refused_where_a_norm_is_no_layer_norm() -> None:
    model = Model()
    model.last = nn.RMSNorm(WIDTH)
    assert "last (RMSNorm): it is an RMSNorm already" in refused(model)


def test_refused_without_numbers_a_sample_or_a_description() -> None:
    assert "pass sample=" in refused(Model(), sample=None)
    assert "does not take this one: IndexError" in refused(Model(), sample=IDS + 100)
    assert "got Model, which has none inside; pass writers= and norms=" in refused(
        Model(), writers=None
    )
    assert "got 'nothing', which fits none" in refused(Model(), norms=("nothing",))
    with pytest.raises(TypeError, match=r"blocks\.0\.norm is LayerNorm; name another"):
        fold_centering(Model(), writers=["blocks.0.norm"], norms=NORMS, sample=IDS)
    with torch.device("meta"):
        model = Model()
    with pytest.raises(ValueError, match="meta device"):
        fold_centering(model, writers=WRITERS, norms=NORMS, sample=IDS)


def test_without_a_proof() -> None:
    report = fold_centering(Model(), writers=WRITERS, norms=NORMS, verify=False)
    assert report.proof is None
    assert report.output_change is None


@pytest.mark.parametrize("centred", [False, True])
def test_fold_scale(centred: bool) -> None:
    """Scale and bias in the next layer, which is given a bias if it has none; and all comes back."""
    model = Model().double()
    if centred:
        fold_centering(model, writers=WRITERS, norms=NORMS, sample=IDS)
    before, saved, modules = model(IDS), state(model), list(model.modules())
    expected = model.blocks[0].up.weight * model.blocks[0].norm.weight
    report = fold_scale(model, readers=READERS, sample=IDS)
    assert torch.equal(model.blocks[0].up.weight, expected)
    assert (model(IDS) - before).abs().max() <= 1e-12 * before.abs().max()
    for module in (model.last, model.blocks[0].norm):
        assert list(module.parameters()) == []
        assert isinstance(module, nk.RMSNorm if centred else nk.LayerNorm)
    assert model.head.bias is not None
    assert report.untied == (() if centred else ("head.weight from tokens.weight",))
    report.undo()
    assert model.head.bias is None
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


class GemmaNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.5, 0.5, WIDTH))

    def forward(self, x: Any) -> Any:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (h * (1.0 + self.weight.float())).type_as(x)


def test_fold_scale_with_an_offset() -> None:
    """1 + w goes into the layer."""
    model = nn.Sequential(GemmaNorm(), nn.Linear(WIDTH, 3, bias=False))
    x = torch.randn(5, WIDTH)
    before, weight = model(x), model[1].weight.detach().clone()
    report = fold_scale(model, readers={"0": ["1"]}, sample=x)
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-6)
    torch.testing.assert_close(model[1].weight, weight * torch.linspace(0.5, 1.5, WIDTH))
    assert report.proof is not None
    assert report.proof.relative <= 1e-5  # this norm computes in float32


def test_fold_scale_is_refused() -> None:
    model = Model()
    saved = state(model)
    part = {"last": ["head"], "blocks.0.norm": ["blocks.1.up"]}
    with pytest.raises(ValueError, match="something else reads one of the norms"):
        fold_scale(model, readers=part, sample=IDS)
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="fits none"):
        fold_scale(model, readers={"last": ["none"]}, sample=IDS)
    with pytest.raises(ValueError, match=r"got Model, which has none inside; pass readers="):
        fold_scale(model)
    with pytest.raises(TypeError, match="a reader must be a linear layer"):
        fold_scale(model, readers={"last": ["tokens"]}, sample=IDS)
    with pytest.raises(TypeError, match="positions is a parameter"):
        fold_scale(model, readers={"last": ["positions"]}, sample=IDS)
    with pytest.raises(ValueError, match="0: follows no convention"):
        fold_scale(nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 2)), readers={"0": ["1"]})
