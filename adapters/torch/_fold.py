"""Linear maps moved from a norm into the layers beside it, exactly: the mean, and the scale."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from normkit import _checks

from ._changes import Changes, refuse_sharded
from ._fold_proof import proved, refuse_dropout
from ._fold_steps import absorb, centre
from ._replace import Maker
from ._sample import OutputChange, change, outputs
from ._stand_in import Refusal
from ._streams import STREAMS, described, matching, readers_of
from ._verify import coarsest

# What rounding leaves of a whole model's outputs in float64, as a part of the largest.
_EXACT = 1e-12
# The same for norms that compute in float32 whatever x is.
_EXACT_IN_FLOAT32 = 1e-5


@dataclass(frozen=True)
class FoldReport:
    """What was folded into what, with the proof, and the way back.

    Attributes:
        norms: The norms that were replaced.
        layers: The layers and parameters that were changed.
        untied: Weights that other layers shared and that are two now.
        proof: How the outputs changed, in float64; None without ``verify``.
        output_change: How the outputs changed in the model's own dtypes; None without ``verify``.
    """

    norms: tuple[str, ...]
    layers: tuple[str, ...]
    untied: tuple[str, ...]
    proof: OutputChange | None
    output_change: OutputChange | None
    _changes: Changes = field(default_factory=Changes, repr=False, compare=False)

    def undo(self) -> None:
        """Put the very same modules and numbers back."""
        self._changes.undo()

    def __str__(self) -> str:
        """A few lines."""
        lines = [f"{len(self.norms)} norms replaced, {len(self.layers)} layers changed"]
        if self.proof is not None:
            lines += [f"in float64: {self.proof}", f"in its own dtype: {self.output_change}"]
        return "\n".join([*lines, *(f"untied: {text}" for text in self.untied)])


def fold_centering(
    model: nn.Module,
    *,
    writers: Iterable[str] | None = None,
    norms: Iterable[str] | None = None,
    sample: Any = None,
    verify: bool = True,
) -> FoldReport:
    """Make an RMSNorm of every LayerNorm of a pre-norm transformer, with the same outputs.

    LayerNorm takes the mean out of a row, then does what RMSNorm does. The row is a sum of what the
    embeddings and the blocks have written. With each writer's mean over the features taken out of
    its weights, W - mean(W), the sum has none, and RMSNorm with LayerNorm's weight, bias and eps
    gives LayerNorm's result.

    Args:
        model: In evaluation, or without dropout. Changed in place.
        writers: Names of the layers and parameters whose output is added to the residual stream;
            "*" stands for one step of a name. None for models of transformers that hold a GPT-2,
            GPT-NeoX, OPT or ViT, which are known.
        norms: Names of the LayerNorms that read the stream, in the same way.
        sample: A batch for the proof: the model's argument, a tuple of them, or a mapping of names.
            None makes one for the known models.
        verify: Whether the model's outputs are compared before and after, in float64 and in its own
            dtypes. In float64 they may differ by 1e-12 of the largest. It takes the memory of the
            model in float64 beside the model.

    Returns:
        A `FoldReport` with ``undo()``. A weight that a writer shares with another layer, as GPT-2's
        embedding with its last layer, is shared no longer: there the mean counts.

    Raises:
        TypeError: a writer is no linear layer, embedding, convolution or parameter.
        ValueError: nothing describes the model, a name fits nothing, there is no sample, or the
            outputs would change: where norms come after the addition (post-norm), where something
            is added that is no writer, where something reads the stream without a norm. The model
            is then as it was.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 9)).eval()
        >>> report = fold_centering(model, writers=["0"], norms=["1"], sample=torch.arange(9))
        >>> model[1]
        RMSNorm((8,), eps=1e-05, elementwise_affine=True, bias=True, convention='torch')
        >>> report.proof.relative < 1e-12
        True

    Source: Jiang, Gu, Zhu and Pan 2023, arXiv:2305.14858.
    """
    _check_model(model, "fold_centering")
    if writers is None or norms is None:
        found = list(_streams(model))
        if not found:
            known = [name for name, stream in STREAMS.items() if stream.writers]
            raise _checks.no_description(type(model).__name__, known, "writers= and norms=")
        writers = [name for names, _, _ in found for name in names]
        norms = [name for _, names, _ in found for name in names]
        sample = found[0][2] if sample is None else sample
    else:
        writers, norms = _named(model, "fold_centering", writers, norms)

    refuse_dropout(model)

    def fold() -> Changes:
        return centre(model, writers, norms)

    return _folded(model, "fold_centering", fold, norms, writers, sample, verify, _EXACT)


def fold_scale(
    model: nn.Module,
    *,
    readers: Mapping[str, Iterable[str]] | None = None,
    sample: Any = None,
    verify: bool = True,
) -> FoldReport:
    """Absorb the scale, and the bias, of norms in the linear layers that read them.

    With h the normalised row, W (h s + b) + c = (W s) h + (W b + c): the layer's weights take the
    scale over and the norm has none left. Exact in real numbers; each new weight is rounded once to
    its dtype, by 2^-24 of itself in float32, 2^-11 in float16 and 2^-8 in bfloat16 at most.

    Args:
        model: Changed in place.
        readers: For each norm by name the layers that read it: all of them, and Linear, or
            transformers' Conv1D. None for models of transformers that hold a Llama, Mistral, Qwen2,
            Qwen3, GPT-2, GPT-NeoX, OPT or ViT: all norms within their blocks. The last norm stays,
            as the layer after it often shares its weight.
        sample: A batch for the proof: the model's argument, a tuple of them, or a mapping of names.
            None makes one for the known models.
        verify: Whether the outputs are compared before and after, as in `fold_centering`. With norms
            that compute in float32 whatever x is, as Llama's, they may differ by 1e-5 of the
            largest.

    Returns:
        A `FoldReport` with ``undo()``.

    Raises:
        TypeError: a reader is not linear.
        ValueError: nothing describes the model, a name fits nothing, a norm follows no convention,
            there is no sample, or the outputs would change, as something else reads the norm.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 2))
        >>> model[0].weight.data.uniform_()  # doctest: +ELLIPSIS
        tensor(...)
        >>> report = fold_scale(model, readers={"0": ["1"]}, sample=torch.ones(1, 8))
        >>> model[0].weight is None and report.proof.relative < 1e-12
        True

    Source: Graef, Wasielewski and Clapp 2024, arXiv:2407.09577 (FlashNorm).
    """
    _check_model(model, "fold_scale")
    if readers is None:
        given: Mapping[str, Iterable[str]] = readers_of(model)
        if not given:
            known = [name for name, stream in STREAMS.items() if stream.readers]
            raise _checks.no_description(type(model).__name__, known, "readers=")
        if sample is None:
            _, module, stream = next(described(model))
            sample = stream.sample(module.config)
    else:
        given = readers
    pairs = {norm: tuple(names) for norm, names in given.items()}
    for name in (*pairs, *(n for names in pairs.values() for n in names)):
        _checks.fold_fits("fold_scale", name, bool(matching(model, name)))
    maker = Maker(model, None, None, False, verify)
    tolerance = _EXACT

    def fold() -> Changes:
        return absorb(model, pairs, maker)

    for name in pairs:
        try:
            norm = maker.recognised(model.get_submodule(name))
        except Refusal as refusal:
            raise _checks.not_exact("fold_scale", f"{name}: {refusal}") from None
        if coarsest(norm, "float64", "float64", "float64") == "float32":
            tolerance = _EXACT_IN_FLOAT32
    layers = tuple(dict.fromkeys(n for names in pairs.values() for n in names))
    return _folded(model, "fold_scale", fold, tuple(pairs), layers, sample, verify, tolerance)


def _check_model(model: nn.Module, fold: str) -> None:
    _checks.torch_module(model, isinstance(model, nn.Module))
    refuse_sharded(model)
    if any(p.is_meta for p in model.parameters()):
        raise _checks.not_exact(fold, "the model is on the meta device and has no numbers")


def _streams(model: nn.Module) -> Iterator[tuple[list[str], list[str], Any]]:
    """Writers, norms and a sample of each stream that is known."""
    for prefix, module, stream in described(model):
        config: Any = module.config
        reason = stream.refuse(config)
        if reason is not None:
            raise _checks.not_exact("fold_centering", f"{type(module).__name__}: {reason}")
        writers = [prefix + n for p in stream.writers for n in matching(module, p)]
        norms = [prefix + n for p in stream.norms for n in matching(module, p)]
        yield writers, norms, stream.sample(config)


def _named(model: nn.Module, fold: str, *patterns: Iterable[str]) -> tuple[list[str], ...]:
    found: list[list[str]] = []
    for given in patterns:
        found.append([])
        for pattern in [given] if isinstance(given, str) else given:
            names = matching(model, pattern)
            _checks.fold_fits(fold, pattern, bool(names))
            found[-1] += names
    return tuple(found)


def _folded(
    model: nn.Module,
    name: str,
    fold: Callable[[], Changes],
    norms: Iterable[str],
    layers: Iterable[str],
    sample: Any,
    verify: bool,
    tolerance: float,
) -> FoldReport:
    """Fold in float64 and take it back, then for good."""
    norms, layers = tuple(norms), tuple(layers)
    proof = difference = None
    before: list[Tensor] = []
    if verify:
        if sample is None:
            raise _checks.needs_sample("there is none for a model described by argument")
        proof = proved(model, name, fold, norms, sample, tolerance)
        before = outputs(model, sample)
    changes = fold()
    if verify:
        difference = change(before, outputs(model, sample))
    return FoldReport(norms, layers, tuple(changes.untied), proof, difference, changes)
