"""SmolLM2-135M carried to Flax NNX: its norms bit for bit, its logits as near as float32 allows."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import normkit.flax
import normkit.torch
import numpy as np
import torch
from e2e_page import Bar
from flax import nnx
from weights import smollm2

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

import llama_flax
import port

TITLE = "SmolLM2-135M in Flax"
_TEXT = (
    "Root mean square normalisation divides each row by the square root of the mean of its "
    "squares. Layer normalisation takes the mean out first."
)
_LOGITS = 1e-3


class _Run(NamedTuple):
    """Logits, and what each norm is given and returns, by its path."""

    logits: np.ndarray
    norms: dict[str, tuple[np.ndarray, np.ndarray]]


def run() -> Iterator[Bar]:
    """The same tokens in torch and in Flax, in float32 and in bfloat16."""
    model, tokenizer = smollm2(torch.float32)
    tokens = tokenizer(_TEXT, return_tensors="pt")["input_ids"]
    reference = None
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        model.to(dtype)
        twin = llama_flax.Llama(model.config, dtype=name, rngs=nnx.Rngs(0))
        port.load(twin, model.state_dict())
        in_torch, in_flax = _in_torch(model, tokens), _in_flax(twin, jnp.asarray(tokens.numpy()))
        if reference is None:
            reference = in_torch
            yield Bar("tokens", tokens.numel())
            yield Bar("norms", len(in_torch.norms))
            yield Bar("norms in Flax", len(in_flax.norms), "=", len(in_torch.norms))

        weights = {path: model.get_submodule(path).weight for path in in_torch.norms}
        layers = {".".join(map(str, path)): layer for path, layer in nnx.iter_modules(twin)}
        differing = transformers_differ = elements = 0
        for path, (x, theirs) in in_torch.norms.items():
            mine = np.asarray(layers[path](jnp.asarray(x)))
            kit = normkit.torch.rms_norm(
                torch.from_dlpack(jnp.asarray(x)),
                weights[path].detach(),
                eps=model.config.rms_norm_eps,
                convention="llama",
            )
            differing += _differ(mine, _numpy(kit))
            transformers_differ += _differ(mine, theirs)
            elements += x.size
        yield Bar(f"{name}: elements that the norms are given", elements)
        yield Bar(f"{name}: elements in which Flax and normkit.torch differ", differing, "=", 0)
        yield Bar(f"{name}: elements in which Flax and transformers differ", transformers_differ)
        yield Bar(
            f"{name}: largest difference of a norm's output in the whole run, of its largest",
            max(_apart(in_flax.norms[p][1], y) for p, (_, y) in in_torch.norms.items()),
        )
        yield Bar(f"{name}: largest logit", float(abs(in_torch.logits).max()))
        apart = float(abs(in_torch.logits - in_flax.logits).max())
        what = f"{name}: largest difference of a logit, torch and Flax"
        if dtype == torch.float32:
            yield Bar(what, apart, "at most", _LOGITS)
        else:
            yield Bar(what, apart)
            for host, one in (("torch", in_torch), ("Flax", in_flax)):
                what = f"{name}: {host}'s logits from torch's in float32, root mean square"
                yield Bar(what, _rms(one.logits - reference.logits))
        same = float((in_torch.logits.argmax(-1) == in_flax.logits.argmax(-1)).mean())
        yield Bar(f"{name}: share of tokens with the same best next token", same)


def _in_torch(model: Any, tokens: torch.Tensor) -> _Run:
    norms: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def keep(path: str) -> Any:
        def hook(_: Any, args: Any, y: torch.Tensor) -> None:
            norms[path] = _numpy(args[0]), _numpy(y)

        return hook

    for path, module in model.named_modules():
        if path.endswith("norm"):
            module.register_forward_hook(keep(path))
    with torch.no_grad():
        return _Run(model(tokens).logits.float().numpy(), norms)


def _in_flax(model: Any, tokens: jax.Array) -> _Run:
    norms: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def keep(call: Any) -> Any:
        def kept(layer: Any, x: jax.Array) -> jax.Array:
            y: jax.Array = call(layer, x)
            norms[paths[id(layer)]] = np.asarray(x), np.asarray(y)
            return y

        return kept

    paths = {id(layer): ".".join(map(str, path)) for path, layer in nnx.iter_modules(model)}
    before = normkit.flax.RMSNorm.__call__
    normkit.flax.RMSNorm.__call__ = keep(before)
    try:
        logits = model(tokens)
        assert {y.dtype for _, y in norms.values()} == {logits.dtype}
        return _Run(np.asarray(logits.astype(jnp.float32)), norms)
    finally:
        normkit.flax.RMSNorm.__call__ = before


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return np.array(jnp.from_dlpack(tensor.detach().contiguous()))


def _differ(a: np.ndarray, b: np.ndarray) -> int:
    bits = {2: np.uint16, 4: np.uint32}[a.itemsize]
    return int((a.view(bits) != b.view(bits)).sum())


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    wide = b.astype(np.float64)
    return float(abs(a.astype(np.float64) - wide).max() / abs(wide).max())


def _rms(a: np.ndarray) -> float:
    return float(np.sqrt((a.astype(np.float64) ** 2).mean()))
