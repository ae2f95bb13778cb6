"""Plants faults one by one and shows that the suite kills every one: `make mutants`.

A mutant is one replacement in one file. It is tried on a copy of the sources with the tests named
beside it; that they fail means that the suite fails. A survivor is a hole in the suite.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parent.parent
_ADAPTERS = ("numpy", "torch", "jax", "flax", "keras")


class Mutant(NamedTuple):
    """A fault: in ``path``, ``before`` becomes ``after``; ``tests`` are pytest's arguments."""

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


def _select(file: str, *words: str) -> tuple[str, ...]:
    return (f"tests/{file}.py", "-k", " and ".join(words)) if words else (f"tests/{file}.py",)


_STATISTICS = "normkit/_statistics.py"
_ARITHMETIC = "normkit/_arithmetic.py"
_PAIRS = "normkit/_pairs.py"
_JAX = "adapters/jax/_arithmetic.py"
_IDENTIFY = "normkit/_identify/"

MUTANTS = [
    Mutant(
        "the second mean is dropped",
        _STATISTICS,
        "return d - (leading + (total - n * leading) / n)",
        "return d",
        _select("test_accuracy", "hard", "numpy:array_api", "layer_norm"),
    ),
    Mutant(
        "the second mean is divided before it is subtracted",
        _STATISTICS,
        "return d - (leading + (total - n * leading) / n)",
        "return d - total / n",
        _select("test_shapes", "constant", "jax"),
    ),
    Mutant(
        "eps is not scaled with the row",
        _STATISTICS,
        "return rows, ar.scaled_eps(eps, q), q",
        "return rows, eps, q",
        _select("test_accuracy", "hard", "numpy:array_api", "float64"),
    ),
    Mutant(
        "float64 rows are not scaled",
        _ARITHMETIC,
        'if dtype_name(x.dtype) != "float64":\n            return 1.0',
        "if True:\n            return 1.0",
        _select("test_accuracy", "hard", "numpy:array_api", "float64"),
    ),
    Mutant(
        "NumPy sums float64 rows as it sums all others",
        "adapters/numpy/_arithmetic.py",
        "return _FLOAT64 if x.dtype == np.float64 else self",
        "return self",
        ("tests/test_fuzz.py::test_recorded_seed",),
    ),
    Mutant(
        "a zero row divides by zero",
        _ARITHMETIC,
        "return xp.where(vanishes, xp.zeros_like(v), r)",
        "return 1.0 / xp.sqrt(v)",
        _select("test_shapes", "zero_rows", "numpy:array_api"),
    ),
    Mutant(
        "the variance is divided by n - 1",
        _STATISTICS,
        "ar.sum(d * d, axes) / ar.count(d, axes) + eps",
        "ar.sum(d * d, axes) / max(ar.count(d, axes) - 1, 1) + eps",
        _select("test_accuracy", "worked", "numpy:array_api"),
    ),
    Mutant(
        "eps is added outside of the root",
        _STATISTICS,
        "return ar.inverse_root(ar.sum(d * d, axes) / ar.count(d, axes) + eps)",
        "r = ar.inverse_root(ar.sum(d * d, axes) / ar.count(d, axes))\n    return r / (1 + eps * r)",
        _select("test_bug_reports", "b09", "numpy:array_api"),
    ),
    Mutant(
        "half types go on in float64",
        _STATISTICS,
        "work = ar.to_float32 if name in HALF_DTYPES else ar.widen",
        "work = ar.widen",
        _select("test_documentation", "blocks", "numerics"),
    ),
    Mutant(
        "bias is added before the scale",
        _STATISTICS,
        """    if scale is not None:
        y = y * work(scale)
    if bias is not None:
        y = work(y) + work(bias)
""",
        """    if bias is not None:
        y = work(y + work(bias))
    if scale is not None:
        y = work(y * work(scale))
""",
        _select("test_accuracy", "hard", "numpy:array_api", "float32"),
    ),
    Mutant(
        "dbias is the caller's dy",
        _STATISTICS,
        "if repeated else terms * 1.0",
        "if repeated else terms",
        _select("test_shapes", "callers_dy", "numpy:array_api"),
    ),
    Mutant(
        "half types are rounded from float64 directly",
        _ARITHMETIC,
        "            y = self.to_float32(y)\n",
        "            pass\n",
        _select("test_derivatives", "by_way_of_float32", "numpy:array_api"),
    ),
    Mutant(
        "LayerNorm's dx forgets mean(g)",
        "normkit/_layer_norm.py",
        "(centre(ar, g, axes) - h * c) * r",
        "(g - h * c) * r",
        _select("test_derivatives", "first_derivative", "numpy:array_api"),
    ),
    Mutant(
        "RMSNorm's dx takes r for a constant",
        "normkit/_rms_norm.py",
        "(g - h * c) * r",
        "g * r",
        _select("test_derivatives", "first_derivative", "numpy:array_api"),
    ),
    Mutant(
        "dx forgets the row scale",
        "normkit/_rms_norm.py",
        "dx = unscaled(ar, (g - h * c) * r, q, dy_q)",
        "dx = (g - h * c) * r",
        _select("test_derivatives", "huge", "numpy:array_api"),
    ),
    Mutant(
        "g forgets the scale",
        "normkit/_layer_norm.py",
        "g = rows if scale is None else rows * ar.widen(scale)",
        "g = rows",
        _select("test_derivatives", "first_derivative", "numpy:array_api"),
    ),
    Mutant(
        "LayerNorm's default eps is RMSNorm's",
        "normkit/_presets.py",
        '**{"eps": 1e-5, **fields}',
        '**{"eps": 1e-6, **fields}',
        _select("test_numpy", "default_eps"),
    ),
    Mutant(
        "the axes are not put in order",
        "normkit/_checks.py",
        "ascending = tuple(sorted(a % rank for a in wanted))",
        "ascending = tuple(a % rank for a in wanted)",
        _select("test_shapes", "any_axes", "numpy:cpu"),
    ),
    Mutant(
        "a negative eps passes",
        "normkit/_checks.py",
        "if not 0 <= value < math.inf:",
        "if not value < math.inf:",
        _select("test_errors", "negative", "numpy:cpu"),
    ),
    Mutant(
        "the residual comes back without x",
        "normkit/_residual.py",
        ".forward(norm, total, scale, bias, call), total",
        ".forward(norm, total, scale, bias, call), residual",
        _select("test_shapes", "residual", "core-torch"),
    ),
    Mutant(
        "XLA flushes what comes in",
        _JAX,
        "return jnp.where(bits & _INFINITY == 0, subnormal, normal)",
        "return normal",
        _select("test_accuracy", "hard", "jax:cpu", "float32"),
    ),
    Mutant(
        "XLA flushes what goes out",
        _JAX,
        "return jnp.where(magnitude < _SMALLEST_NORMAL, digits | sign, normal)",
        "return normal",
        _select("test_accuracy", "hard", "jax:cpu", "float32"),
    ),
    Mutant(
        "float32 steps are not rounded on JAX",
        _JAX,
        "return jnp.where(jnp.abs(y) < smallest_normal, subnormal, normal)",
        "return y",
        _select("test_accuracy", "same_bits", "jax:cpu", "float16"),
    ),
    Mutant(
        "h keeps all its bits",
        _ARITHMETIC,
        "multiple -= rest",
        "multiple = h",
        _select("test_fuzz", "often_a_tie"),
    ),
    Mutant(
        "tiny float64 rows are not scaled beside an eps",
        _ARITHMETIC,
        "(1000 - math.frexp(eps)[1]) // 4 if eps else 300",
        "300 if eps < 2.0**-800 else 0",
        _select("test_fuzz", "subnormal_deviations"),
    ),
    Mutant(
        "a convention's offset is added after the scale is rounded",
        "normkit/_rounded.py",
        "return scale.to(dtypes.of(c.scale)) + c.offset",
        "return (scale + c.offset).to(dtypes.of(c.scale))",
        _select("test_bug_reports", "b20", "numpy:cpu"),
    ),
    Mutant(
        "a convention's gradient forgets the offset",
        "normkit/_rounded.py",
        "s = None if scale is None else ar.widen(scale) + c.offset",
        "s = None if scale is None else ar.widen(scale)",
        _select("test_bug_reports", "b21", "numpy:cpu"),
    ),
    Mutant(
        "a convention's cast between the products is left out",
        "normkit/_rounded.py",
        "return _plus(_times(h.to(between), s), b)",
        "return _plus(_times(h, s), b)",
        _select("test_convention_formulas"),
    ),
    Mutant(
        "the root of a convention is not rounded before its reciprocal",
        "normkit/_rounded.py",
        "            under = ar.round_to(under, work)",
        "            pass",
        _select("test_convention_formulas", "float32-rms_norm-llama"),
    ),
    Mutant(
        "a convention's eps is not rounded to the statistics",
        "normkit/_values.py",
        "self.ar.number_in(other, self.dtype)",
        "other",
        _select("test_convention_formulas", "eps"),
    ),
    Mutant(
        "a half type's mean is rounded twice",
        "normkit/_values.py",
        "    ar, work = z.ar, work_dtype(z.dtype)\n    total = ar.round_to(ar.sum(z.held",
        "    ar, work = z.ar, z.dtype\n    total = ar.round_to(ar.sum(z.held",
        _select("test_parity", "ImageGPT"),
    ),
    Mutant(
        "the gradient of partial statistics reaches all features",
        "normkit/_rounded.py",
        "ar.sum(g * d, axes), parts.seen(d, axes)",
        "ar.sum(g * d, axes), d",
        _select("test_convention_derivatives", "differences", "llama"),
    ),
    Mutant(
        "groups are counted with a stride",
        "normkit/_parts.py",
        "(*batch, self._groups, size))",
        "(*batch, size, self._groups)).swapaxes(-1, -2)",
        _select("test_convention_bits", "rows_of_their_own"),
    ),
    Mutant(
        "JAX rounds subnormal float16 numbers to zero",
        _JAX,
        "jnp.where(jnp.abs(y) < smallest_normal, subnormal, normal)",
        "normal",
        _select("test_convention_bits", "bits_and_dtype", "rms_norm-haiku"),
    ),
    Mutant(
        "JAX differentiates the rounding of a constant",
        _JAX,
        '"""``number``, not rounded."""\n        return number',
        '"""``number``, not rounded."""\n        return super().number_in(number, name)',
        _select("test_convention_derivatives", "forward_mode", "paper"),
    ),
    Mutant(
        "torch.func differentiates the casts of a convention",
        "adapters/torch/_library.py",
        "    return torch.where(torch.isfinite(smooth), same, y)",
        "    return y",
        _select("test_convention_derivatives", "transforms_of_torch"),
    ),
    Mutant(
        "the compiler takes the dtype of x for that of the result",
        "adapters/torch/_library.py",
        "dtype=_result_dtype(norm, _call(*options).convention, *dtypes)",
        "dtype=x.dtype",
        _select("test_torch", "promises", "llama"),
    ),
    Mutant(
        "Flax's dtype is forgotten",
        "adapters/flax/_call.py",
        ".with_dtype(jnp.dtype(dtype).name)",
        "",
        _select("test_flax", "place_of_the_promoted"),
    ),
    Mutant(
        "XLA may merge the products of pairs with sums",
        _JAX,
        "return _opaque(x, self._zero) if x.dtype == self.dtype else x",
        "return x",
        _select("test_pairs", "steps_of_a_half"),
    ),
    Mutant(
        "the errors of a sum of pairs are dropped",
        _PAIRS,
        "error = error + (lo[left] + lo[right])",
        "error = lo[left] + lo[right]",
        _select("test_pairs", "every_length", "numpy"),
    ),
    Mutant(
        "the root of a pair is a plain root",
        _PAIRS,
        "* (0.5 + 0.375 * t)",
        "* 0",
        _select("test_pairs", "every_length", "numpy"),
    ),
    Mutant(
        "pairs scale rows without regard to eps",
        _PAIRS,
        "m = xp.where(m < least, one * least, m)",
        "pass",
        _select("test_pairs", "leaves_the_range"),
    ),
    Mutant(
        "a large factor of pairs is cut as it is",
        _PAIRS,
        "return self.xp.where(large, a * (1 / tame), a), self.xp.where(large, one * tame, one)",
        "return a, one",
        _select("test_pairs", "leaves_the_range"),
    ),
    Mutant(
        "parts of a row count for the whole on JAX",
        _JAX,
        "n * lax.axis_size(self.axis_name)",
        "n",
        _select("test_flax", "mapped_axis"),
    ),
    Mutant(
        "JAX keeps the float64 rows",
        "adapters/jax/_functional.py",
        "return jax.checkpoint(function)",
        "return function",
        _select("test_jax_blocks", "kept", "rms_norm", "pairs", "bfloat16"),
    ),
    Mutant(
        "JAX keeps what the linear derivative needs",
        "adapters/jax/_primitives.py",
        "_JVP.bind(*inputs, *some, moved=moved, **of)",
        "_jvp(*inputs, *some, moved=moved, **of)",
        _select("test_flax", "keeps_only"),
    ),
    Mutant(
        "the loops keep all bits of h",
        "normkit/kernels/_lanes.py",
        "constant(_I64, -8, _count(h))",
        "constant(_I64, -1, _count(h))",
        _select("test_fuzz", "often_a_tie"),
    ),
    Mutant(
        "the loops forget what rounding left of the mean",
        "normkit/kernels/_statistics.py",
        "(tag, x, work, mean, rest / width)",
        "(tag, x, work, mean, 0.0)",
        _select("test_accuracy", "hard", "numpy:cpu", "layer_norm"),
    ),
    Mutant(
        "the loops round r to float32",
        "normkit/kernels/_forward.py",
        "return high, np.float32(r - np.float64(high))",
        "return high, np.float32(0.0)",
        _select("test_fuzz", "fixed_batch", "rms_norm", "float16"),
    ),
    Mutant(
        "the loops' r is rounded up, and -0 with it",
        "normkit/kernels/_forward.py",
        "high = np.float32(r * (1.0 - 2.0**-24))",
        "high = np.float32(r)",
        _select("test_accuracy", "hard", "rms_norm", "float16", "array_api"),
    ),
    Mutant(
        "the loops' gradients forget what rounding left of the mean",
        "normkit/kernels/_backward.py",
        "rest = rest / width",
        "rest = 0.0",
        _select("test_contract", "numpy:cpu", "layer_norm"),
    ),
    Mutant(
        "the loops take rows in the way of those before them",
        "normkit/kernels/_backward.py",
        "elif large_mean != precise:",
        "elif False:",
        _select("test_kernels", "depend_on_others"),
    ),
    Mutant(
        "the loops leave out the last columns",
        "normkit/kernels/_lanes.py",
        "while j < width:",
        "while j < 0:",
        _select("test_kernels", "unasked", "rms_norm", "float32"),
    ),
    Mutant(
        "the loops add scaled rows to dscale",
        "normkit/kernels/_columns.py",
        "lambda like, dy_tag, address, index, value: load_lanes(like, dy_tag, address, index)",
        "lambda like, dy_tag, address, index, value: value",
        _select("test_kernels", "of_any_size"),
    ),
    Mutant(
        "two threads share their working memory",
        "normkit/kernels/_parts.py",
        "take(block, _THREADS) * word(block, _WORK_STEP)",
        "0 * take(block, _THREADS) * word(block, _WORK_STEP)",
        _select("test_kernels", "depend_on_threads"),
    ),
    Mutant(
        "the loops round a gradient otherwise than its mean",
        "normkit/kernels/_columns.py",
        "g_mean: dy * scale - g_mean",
        "g_mean: fused_lanes(dy, scale, -g_mean)",
        _select("test_kernels", "all_mean"),
    ),
    Mutant(
        "no thread takes the last part of a stripe",
        "normkit/kernels/_parts.py",
        "if part < parts * (stripe + 1) // stripes:",
        "if part + 1 < parts * (stripe + 1) // stripes:",
        _select("test_kernels", "depend_on_threads"),
    ),
    Mutant(
        "XLA's threads meet in their working memory",
        "adapters/jax/_frame.py",
        "own = backward_work(width)",
        "own = 5 * width",
        _select("test_jax_kernel", "those_of_numpy"),
    ),
    Mutant(
        "the loops take the variance from one pass",
        "normkit/kernels/_statistics.py",
        "return lambda tag, variance, mean_square: variance > 0.75 * mean_square",
        "return lambda tag, variance, mean_square: True",
        _select("test_accuracy", "hard", "numpy:cpu", "layer_norm"),
    ),
    Mutant(
        "the loops do not scale eps with float64 rows",
        "normkit/kernels/_statistics.py",
        "inverse_root(square / width + eps * q * q * q * q)",
        "inverse_root(square / width + eps)",
        _select("test_accuracy", "hard", "numpy:cpu", "float64"),
    ),
    Mutant(
        "the loops' bfloat16 rounds a tie up",
        "normkit/kernels/_memory.py",
        "builder.and_(high, constant(_I16, 1, count))",
        "constant(_I16, 1, count)",
        _select("test_kernels", "unasked", "bfloat16"),
    ),
    Mutant(
        "a NaN of the loops' bfloat16 may become infinite",
        "normkit/kernels/_memory.py",
        "builder.and_(up, is_number)",
        "up",
        _select("test_kernels", "nan"),
    ),
    Mutant(
        "code on disk is linked by a name that many loops share",
        "normkit/kernels/_statistics.py",
        'sums_of_row.__qualname__ = f"{block.__name__}_of_row"',
        "pass",
        _select("test_kernels", "on_disk_fits"),
    ),
    Mutant(
        "a forked child waits for its parent's threads",
        "normkit/kernels/_threads.py",
        "os.register_at_fork(after_in_child=_forget)",
        "pass",
        _select("test_kernels", "fork"),
    ),
    Mutant(
        "the parts of dscale depend on the threads",
        "normkit/kernels/_run.py",
        "parts = cpu.parts_of_sums(rows, width)",
        "parts = max(1, min(threads, rows // 2))",
        _select("test_kernels", "depend_on_threads"),
    ),
    Mutant(
        "a result overlaps the rows that are still to be read",
        "adapters/numpy/_cpu.py",
        "if not np.may_share_memory(out, x) or (in_place and out.strides == x.strides):",
        "if True:",
        _select("test_kernels", "test_out", "shifted"),
    ),
    Mutant(
        "blocks start at the first row, whatever is left over",
        "adapters/jax/_blocks.py",
        "add_block(rest + i * size, size, found)",
        "add_block(i * size, size, found)",
        _select("test_jax_blocks", "bits_of_numpy", "rms_norm", "float32", "523"),
    ),
    Mutant(
        "mapped gradients of parameters are added up",
        "adapters/jax/_primitives.py",
        "mapped |= set(names if primitive is _VJP else ())",
        "mapped |= set()",
        _select("test_jax_blocks", "vmap"),
    ),
    Mutant(
        "torch's second derivative takes the operator for a constant",
        "adapters/torch/_library.py",
        "return formula_vjp(norm, dy, x, weight, bias, call)\n    plain",
        "return run_vjp(norm, dy, x, weight, bias, call)\n    plain",
        _select("test_derivatives", "gradcheck"),
    ),
    Mutant(
        "torch's batched gradients meet the loops",
        "adapters/torch/_library.py",
        "plain = type(dy) is Tensor and torch._C._has_storage(dy)",
        "plain = True",
        _select("test_derivatives", "gradcheck"),
    ),
    Mutant(
        "torch transforms meet the operator",
        "adapters/torch/_functional.py",
        "_transforms() or",
        "False or",
        _select("test_derivatives", "torch_higher"),
    ),
    Mutant(
        "reset_parameters forgets the bias",
        "adapters/torch/_module.py",
        "if bias is not None:\n            nn.init.zeros_(bias)",
        "if bias is None:\n            return",
        _select("test_torch", "meta_device"),
    ),
    Mutant(
        "Flax rounds to the narrow dtype too early",
        "adapters/flax/_call.py",
        "x = x.astype(jnp.promote_types(x.dtype, dtype))",
        "x = x.astype(dtype)",
        _select("test_flax", "result_dtype"),
    ),
    Mutant(
        "identify overlooks the dtype of a result",
        _IDENTIFY + "_compare.py",
        "if theirs.dtype != ours.dtype:",
        "if False:",
        _select("test_identify", "dtype_of_the_result"),
    ),
    Mutant(
        "identify allows every element to be wrong",
        _IDENTIFY + "_compare.py",
        "_SHARE = 0.01",
        "_SHARE = 1.0",
        _select("test_identify", "one_rounding"),
    ),
    Mutant(
        "identify overlooks a single wrong element",
        _IDENTIFY + "_compare.py",
        "_WRONG = 2.0**-6",
        "_WRONG = 4.0",
        _select("test_identify", "gets_none", "_clipped"),
    ),
    Mutant(
        "identify takes eps to be inside the root",
        _IDENTIFY + "_structure.py",
        "place = min(places, key=lambda p: abs(places[p][0] - ratio))",
        'place = "inside"',
        _select("test_identify", "eps_is"),
    ),
    Mutant(
        "identify overlooks an unbiased variance",
        _IDENTIFY + "_structure.py",
        "if abs(size - unbiased) < _NEAR / n:",
        "if False:",
        _select("test_identify", "gets_none", "_unbiased"),
    ),
    Mutant(
        "identify overlooks a wrong axis",
        _IDENTIFY + "_structure.py",
        "_values(f, x)[1:]).max() > _NEAR:",
        "_values(f, x)[1:]).max() > 1e9:",
        _select("test_identify", "gets_none", "_wrong_axis"),
    ),
    Mutant(
        "a gate multiplies what is already rounded",
        "normkit/_rounded.py",
        "y = _times(y, factor)\n    y = y.to(dtypes.of(c.output))",
        "y = _times(y.to(dtypes.of(c.output)), factor)\n    y = y.to(dtypes.of(c.output))",
        _select("test_gated", "half_an_ulp", "standard"),
    ),
    Mutant(
        "the slope of silu leaves out the gate",
        "normkit/_rounded.py",
        "sigmoid * (1.0 + g * rest)",
        "sigmoid",
        _select("test_gated", "differences", "gated_pre"),
    ),
    Mutant(
        "exp of a gate overflows in the backward pass",
        "normkit/_rounded.py",
        "ar.xp, g < 0",
        "ar.xp, g > 0",
        _select("test_gated", "torch_and_jax", "jax", "gated_pre"),
    ),
    Mutant(
        "a sum of squares is divided by n",
        "normkit/_rounded.py",
        'return ar.count(x, axes) if c.reduction == "mean" else 1',
        "return ar.count(x, axes)",
        _select("test_gated", "length_1"),
    ),
    Mutant(
        "identify overlooks that softmax is no norm",
        _IDENTIFY + "_structure.py",
        "findings += _not_invariant(f, n)",
        "pass",
        _select("test_identify", "gets_none", "_softmax"),
    ),
    Mutant(
        "identify overlooks an offset",
        _IDENTIFY + "_forms.py",
        "called = called._replace(neutral=0.0)",
        "pass",
        _select("test_identify", "eight", "told", "gemma"),
    ),
    Mutant(
        "identify overlooks parts of a row",
        _IDENTIFY + "_structure.py",
        "return n, max(1, round(n / (int(touched[0].sum()) + int(blocks[0][1]))))",
        "return n, 1",
        _select("test_identify", "width_partial"),
    ),
    Mutant(
        "identify probes with dtypes that it was told to leave out",
        _IDENTIFY + "_match.py",
        "if not probe.dtypes <= allowed:",
        "if False:",
        _select("test_identify", "eight", "olmo", "both"),
    ),
    Mutant(
        "identify does not search field by field",
        _IDENTIFY + "_match.py",
        "_SEARCH_STEPS = 3",
        "_SEARCH_STEPS = 0",
        _select("test_identify", "field_by_field"),
    ),
    Mutant(
        "identify changes the module it is given",
        "adapters/torch/_identify.py",
        "copy.deepcopy(module).eval()",
        "module.eval()",
        _select("test_identify", "stay_as_they_are"),
    ),
    Mutant(
        "identify changes the NNX module it is given",
        "adapters/flax/_identify.py",
        "nnx.clone(module)",
        "module",
        _select("test_identify", "flax_modules"),
    ),
    Mutant(
        "a census overlooks a second eps",
        "adapters/torch/_census.py",
        "for row in same if row.found}) > 1:",
        "for row in same if row.found}) > 9:",
        _select("test_census", "mixed"),
    ),
    Mutant(
        "a census lists the blocks around norms",
        "adapters/torch/_census.py",
        "if is_norm(module) and not any(is_norm(part) for part in parts):",
        "if is_norm(module):",
        _select("test_census", "one_convention"),
    ),
    Mutant(
        "an offset is folded in the dtype of the weights",
        "normkit/_scale.py",
        'if convention.offset_added == "after_cast":',
        "if False:",
        _select("test_scale", "folding", "numpy:cpu"),
    ),
    Mutant(
        "a fold counts no factor that changes",
        "normkit/_scale.py",
        "kept != factor",
        "kept != kept",
        _select("test_scale", "counts", "numpy:cpu"),
    ),
    Mutant(
        "other layers are renamed like norms",
        "normkit/_scale.py",
        "if tuple(parent) in inside:",
        "if last in words:",
        _select("test_bug_reports", "b54"),
    ),
    Mutant(
        "a torch tensor and the Flax norm that took it share memory",
        "adapters/flax/_port.py",
        "copy = jnp.array(array, copy=True)",
        "copy = jnp.asarray(array)",
        _select("test_port", "copies"),
    ),
    Mutant(
        "a Flax norm with another eps takes torch's parameters in silence",
        "adapters/flax/_port.py",
        "if saved != own:",
        "if saved is None:",
        _select("test_port", "eps"),
    ),
    Mutant(
        "a Flax norm need not have the parameters that torch's has",
        "normkit/_checks.py",
        "if set(given) != set(own):",
        "if not set(given) & set(own):",
        _select("test_port", "refused"),
    ),
    Mutant(
        "Flax's order of rotary pairs is another than Llama's",
        "docs/examples/llama_flax.py",
        "a * cos - b * sin",
        "a * cos + b * sin",
        _select("test_examples", "llama"),
    ),
    Mutant(
        "torch and Flax train from other weights",
        "docs/examples/port.py",
        'array(state[f"{path}.weight"]).T',
        '1.001 * array(state[f"{path}.weight"]).T',
        _select("test_examples", "alike"),
    ),
    Mutant(
        "hooks stay with the module that is replaced",
        "adapters/torch/_stand_in.py",
        "own[name] = vars(module)[name]",
        "own.setdefault(name, None)",
        _select("test_replace", "hooks"),
    ),
    Mutant(
        "identify and comparison call hooks",
        "adapters/torch/_stand_in.py",
        "vars(twin)[name] = OrderedDict()",
        "pass",
        _select("test_replace", "hooks"),
    ),
    Mutant(
        "a layer forgets the mode",
        "adapters/torch/_stand_in.py",
        "layer.training = module.training",
        "pass",
        _select("test_replace", "requires_grad"),
    ),
    Mutant(
        "undo brings the parameters of then",
        "adapters/torch/_changes.py",
        "old._parameters[key] = now",
        "pass",
        _select("test_replace", "requires_grad"),
    ),
    Mutant(
        "a module in two places is replaced in one",
        "adapters/torch/_changes.py",
        "list(places(model, old))",
        "list(places(model, old))[:1]",
        _select("test_replace", "two_places"),
    ),
    Mutant(
        "a departure goes in",
        "adapters/torch/_replace.py",
        'raise Refusal(f"departs: {compared.departure}")',
        "pass",
        _select("test_replace", "does_not_meet"),
    ),
    Mutant(
        "a comparison overlooks 100 ULP",
        "adapters/torch/_verify.py",
        "_NOISE_ULP = 8.0",
        "_NOISE_ULP = 800.0",
        _select("test_replace", "does_not_meet"),
    ),
    Mutant(
        "eps outside is followed unasked",
        "adapters/torch/_replace.py",
        'norm.fields.eps_place == "outside"',
        "False",
        _select("test_replace", "planted"),
    ),
    Mutant(
        "a list goes on calling the old norm",
        "adapters/torch/_replace.py",
        "if module in self.held:",
        "if False:",
        _select("test_replace", "held_outside"),
    ),
    Mutant(
        "a writer's bias keeps its mean",
        "adapters/torch/_streams.py",
        'yield layer, "bias", 0',
        "pass",
        _select("test_fold", "described"),
    ),
    Mutant(
        "the last layer's weight is centred with the embedding",
        "adapters/torch/_fold_steps.py",
        "if not elsewhere:",
        "if True:",
        _select("test_fold", "described"),
    ),
    Mutant(
        "a fold that is not exact goes in",
        "adapters/torch/_fold_proof.py",
        "if not found.relative <= tolerance:",
        "if False:",
        _select("test_fold", "branch"),
    ),
    Mutant(
        "a fold in training with dropout",
        "adapters/torch/_fold_proof.py",
        "module.training and module.p > 0",
        "False",
        _select("test_fold", "dropout"),
    ),
    Mutant(
        "a scale is folded without its offset",
        "adapters/torch/_fold_steps.py",
        "scale = scale + norm.fields.offset",
        "pass",
        _select("test_fold", "offset"),
    ),
]


@contextmanager
def _copy() -> Iterator[Path]:
    """The package as it is installed, and the tests, in a folder of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_ROOT / "normkit", folder / "normkit", ignore=ignore)
        for adapter in _ADAPTERS:
            target = folder / "normkit" / adapter
            shutil.copytree(_ROOT / "adapters" / adapter, target, ignore=ignore)
        for other in ("tests", "docs"):
            shutil.copytree(_ROOT / other, folder / other, ignore=ignore)
        for other in ("README.md", "pyproject.toml"):
            shutil.copy(_ROOT / other, folder)
        yield folder


def _fails(mutant: Mutant | None, tests: tuple[str, ...]) -> bool:
    """Whether ``tests`` fail with ``mutant`` planted."""
    with _copy() as folder:
        if mutant is not None:
            path = folder / mutant.path.replace("adapters/", "normkit/")
            text = path.read_text(encoding="utf-8")
            if mutant.before not in text:
                raise ValueError(f"{mutant.name}: {mutant.path} no longer holds {mutant.before!r}")
            path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        run = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=folder, env=environment
        )
        if run.returncode not in (0, 1):
            raise RuntimeError(f"pytest could not run {tests}:\n{run.stdout}{run.stderr}")
        return run.returncode == 1


def main() -> int:
    """Try every mutant, or those whose names contain an argument; 1 if one survives."""
    chosen = [m for m in MUTANTS if not sys.argv[1:] or any(a in m.name for a in sys.argv[1:])]
    survivors = 0
    for mutant in chosen:
        killed = _fails(mutant, mutant.tests)
        survivors += not killed
        print("killed  " if killed else "SURVIVED", mutant.name, flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
