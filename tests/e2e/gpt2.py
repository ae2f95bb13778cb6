"""A random GPT-2 small: the swap, the lesson's step to RMSNorm, and the exact folds."""

from collections.abc import Iterator

import torch
from e2e_page import Bar
from normkit.torch import fold_centering, fold_scale, replace_norms
from torch import nn
from weights import gpt2

TITLE = "GPT-2 small, random"
_WIDTH, _NORMS = 768, 25


def run() -> Iterator[Bar]:
    """Each step on the same model, undone before the next."""
    model = gpt2()
    generator = torch.Generator().manual_seed(1)
    sample = torch.randint(model.config.vocab_size, (2, 32), generator=generator)

    report = replace_norms(model, sample=sample)
    yield Bar("norms", len(report.rows), "=", _NORMS)
    yield Bar("replaced", len(report.replaced), "=", _NORMS)
    yield Bar("largest change of an output, of the largest", _relative(report), "at most", 1e-5)
    report.undo()

    report = replace_norms(model, target="rms_norm", sample=sample)
    yield Bar("to RMSNorm: parameters dropped", report.dropped, "=", _NORMS * _WIDTH)
    yield Bar("to RMSNorm: largest change of an output, of the largest", _relative(report))
    report.undo()

    folded = fold_centering(model)
    assert folded.proof is not None
    assert folded.output_change is not None
    yield Bar("fold_centering: LayerNorms left", _layer_norms(model), "=", 0)
    yield Bar("fold_centering in float64", folded.proof.relative, "at most", 1e-12)
    yield Bar("fold_centering in float32", folded.output_change.relative, "at most", 1e-5)
    scaled = fold_scale(model)
    assert scaled.proof is not None
    assert scaled.output_change is not None
    yield Bar("then fold_scale: norms without parameters", len(scaled.norms), "=", _NORMS - 1)
    yield Bar("fold_scale in float64", scaled.proof.relative, "at most", 1e-12)
    yield Bar("fold_scale in float32", scaled.output_change.relative, "at most", 1e-5)
    scaled.undo()
    folded.undo()
    yield Bar("after undo: LayerNorms", _layer_norms(model), "=", _NORMS)


def _relative(report: object) -> float:
    return report.output_change.relative  # type: ignore[attr-defined, no-any-return]


def _layer_norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.LayerNorm) for module in model.modules())
