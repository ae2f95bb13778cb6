"""SmolLM2-135M with normkit's norms: the same text, and logits as near as float32 allows."""

from collections.abc import Iterator

import normkit.torch
import torch
from e2e_page import Bar
from torch import nn
from weights import smollm2

TITLE = "SmolLM2-135M"
_PROMPTS = (
    "The capital of France is",
    "A recipe for tomato soup: first,",
    "def fibonacci(n):\n    ",
)
_TOKENS = 64
_LOGITS = 2e-4


def run() -> Iterator[Bar]:
    """Greedy text and logits, before and after."""
    model, tokenizer = smollm2(torch.float32)
    tokenizer.padding_side = "left"
    batch = tokenizer(list(_PROMPTS), return_tensors="pt", padding=True)
    length = batch["input_ids"].shape[1]

    def text() -> torch.Tensor:
        options = {"max_new_tokens": _TOKENS, "min_new_tokens": _TOKENS, "do_sample": False}
        return model.generate(**batch, **options)

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.cat([batch["attention_mask"], torch.ones(len(tokens), _TOKENS)], 1).long()
        with torch.no_grad():
            return model(input_ids=tokens, attention_mask=mask).logits.double()[mask.bool()]

    tokens = text()
    before = logits(tokens)
    nn.Module.double(model)  # transformers' own refuses, as the file was quantised
    own = (before - logits(tokens)).abs().max().item()
    nn.Module.float(model)
    assert torch.equal(before, logits(tokens))  # float32 numbers survive float64

    report = normkit.torch.replace_norms(model)
    yield Bar("norms", len(report.rows))
    yield Bar("replaced", len(report.replaced), "=", len(report.rows))
    yield Bar("convention", report.rows[0].convention)
    same = (text() == tokens)[:, length:].all(1).sum().item()
    yield Bar(f"prompts with the same {_TOKENS} greedy tokens", same, "=", len(_PROMPTS))
    change = (logits(tokens) - before).abs().max().item()
    yield Bar("largest logit", before.abs().max().item())
    yield Bar("largest change of a logit", change, "at most", _LOGITS)
    yield Bar("the same, beside float32 against float64 without normkit", change, "at most", own)
    report.undo()
    yield Bar("elements that undo leaves changed", _differ(before, logits(tokens)), "=", 0)


def _differ(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a != b).sum().item())
