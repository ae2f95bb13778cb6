"""The kernel "numba": that it runs where it should, and that nothing but its speed shows."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from backends import FORWARD, Subject, subjects

from normkit.testing import assert_same_bits, dtype_of

pytest.importorskip("numba", reason="numba is not installed: pip install 'normkit[cpu]'")

from normkit.kernels import _run

_HERE = {subject.label: subject for subject in subjects()[0]}


@pytest.fixture(params=["numpy:cpu", "torch:cpu"])
def host(request: pytest.FixtureRequest) -> Subject:
    if request.param not in _HERE:
        pytest.skip("the backend is not here")
    return _HERE[request.param]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The loops that ran, in order."""
    found = []

    def spied(name: str, loop_for: Any) -> Any:
        def spy(*key: Any) -> Any:
            found.append(name)
            return loop_for(*key)

        return spy

    for name in ("forward_loop", "parts_of_backward"):
        monkeypatch.setattr(_run, name, spied(name, getattr(_run, name)))
    return found


def _arrays(shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[Any]:
    """dy, x, scale, bias."""
    random = np.random.default_rng(seed)
    dy, x = random.standard_normal((2, *shape))
    return [a.astype(dtype_of(dtype)) for a in (dy, x, *random.standard_normal((2, shape[-1])))]


def _assert_as_formulas(host: Subject, op: str, arrays: list[Any], **options: Any) -> None:
    """The kernel's bits, forward and backward, are those of the core's formulas."""
    dy, *inputs = arrays
    formulas = {**options, "kernel": "array_api"}
    assert_same_bits(host.run(op, *inputs, **options), host.run(op, *inputs, **formulas))
    vjp = f"{op}_vjp"
    gradients = host.run(vjp, dy, *inputs, **options)
    for ours, formula in zip(gradients, host.run(vjp, dy, *inputs, **formulas), strict=True):
        if formula is None:
            assert ours is None
        elif formula.dtype == np.float64:  # two orders of a sum of len(dy) float64 products
            size = (
                2 * np.abs(dy, dtype=np.float64).sum(axis=0) * dy.shape[-1] ** 0.5
            )  # |h| is at most sqrt(width)
            assert np.all(np.abs(ours - formula) <= 2.0**-53 * len(dy) * size)
        else:
            assert_same_bits(ours, formula)


# 1 and 2 rows, an odd number, several blocks of a sum, more than one part for dscale
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 130), (3, 2100), (2, 200, 513)])
def test_it_runs_unasked_with_the_bits_of_the_formulas(
    host: Subject, op: str, bits_dtype: str, shape: tuple[int, ...], ran: list[str]
) -> None:
    arrays = _arrays(shape, bits_dtype)
    _assert_as_formulas(host, op, arrays)
    _assert_as_formulas(host, op, [*arrays[:2], None, None])
    assert {"forward_loop", "parts_of_backward"} <= set(ran)


def test_mixed_dtypes(host: Subject, op: str, bits_dtype: str, scale_dtype: str) -> None:
    dy, x, scale, bias = _arrays((5, 65), bits_dtype)
    scale, bias = scale.astype(dtype_of(scale_dtype)), bias.astype(dtype_of(scale_dtype))
    _assert_as_formulas(host, op, [dy, x, scale, bias])
    _assert_as_formulas(host, op, [dy.astype(np.float64), x, scale, None])


def test_any_nan_stays_one(host: Subject, op: str, half_dtype: str) -> None:
    """Whatever bits it has: in scale, where it meets a finite number, as in x."""
    x = np.ones((2, 4), dtype_of(half_dtype))
    x[1] = [1, 2, 3, 4]
    bits = np.uint32([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001])
    y = host.run(op, x, bits.view(np.float32))
    assert np.all(np.isnan(y.astype(np.float32)))


@pytest.mark.parametrize("axis", [0, 1, (0, 2), (1, 2), (0, 1, 2)])
def test_any_axes(host: Subject, op: str, axis: Any) -> None:
    dy, x = np.random.default_rng(1).standard_normal((2, 4, 6, 10)).astype(np.float32)
    sizes = [x.shape[a] for a in np.atleast_1d(axis)]
    scale, bias = np.random.default_rng(2).standard_normal((2, *sizes)).astype(np.float32)
    _assert_as_formulas(host, op, [dy, x, scale, bias], axis=axis)


@pytest.mark.parametrize("axis", [-1, 0])
def test_residual(host: Subject, op: str, dtype: str, axis: int) -> None:
    """One pass gives the sum, rounded, and its norm."""
    residual, x, scale, bias = _arrays((66, 66), dtype)
    y, total = host.run(f"add_{op}", x, residual, scale, bias, axis=axis)
    wide = x.astype(np.float64) + residual.astype(np.float64)
    assert_same_bits(
        total, wide.astype(np.float32 if dtype != "float64" else dtype).astype(x.dtype)
    )
    assert_same_bits(y, host.run(op, total, scale, bias, axis=axis))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_bits_do_not_depend_on_threads(
    host: Subject, op: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = _arrays((1201, 1024), "float64")  # which shows in what order a sum was added
    found = []
    for number in (1, threads):
        monkeypatch.setenv("OMP_NUM_THREADS", str(number))
        _set_torch_threads(host, number)
        found.append((host.run(op, *arrays[1:]), *host.run(f"{op}_vjp", *arrays)))
    _set_torch_threads(host, os.cpu_count() or 1)
    for one, many in zip(*found, strict=True):
        assert_same_bits(one, many)


def _set_torch_threads(host: Subject, number: int) -> None:
    if host.backend.framework == "torch":
        import torch

        torch.set_num_threads(number)


def test_sixteen_threads_call_a_thousand_times(host: Subject) -> None:
    """Small calls, and large ones that share the pool."""
    inputs = [
        _arrays(shape, "float32", seed)[1:] for seed, shape in enumerate([(2, 64), (1100, 512)])
    ]
    expected = [[host.run(op, *arrays) for op in FORWARD] for arrays in inputs]

    def call_often(seed: int) -> None:
        for i in range(1000):
            large, which = i % 50 == seed, (i + seed) % 2
            y = host.run(FORWARD[which], *inputs[large])
            assert np.array_equal(y, expected[large][which])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call_often, range(16)))


def _python(script: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_CALLS = """
import sys
import numpy as np
import normkit.numpy
x = np.random.default_rng(0).standard_normal((1100, 512)).astype(np.float32)
def same(op):
    function = getattr(normkit.numpy, op)
    return np.array_equal(function(x, kernel="numba"), function(x, kernel="array_api"))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_child_of_a_fork() -> None:
    """The parent's pool has no threads in the child."""
    script = """
import os
assert same("rms_norm")
child = os.fork()
if not child:
    os._exit(0 if same("rms_norm") and same("layer_norm") else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert _python(_CALLS + script, OMP_NUM_THREADS="2") == "0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_child_of_a_fork_of_torch() -> None:
    """OpenMP's threads are not in the child, and it would wait for them."""
    pytest.importorskip("torch")
    script = """
import os
import torch
import normkit.torch
torch.set_num_threads(2)
x = torch.tensor(x)
def bits():
    y = normkit.torch.layer_norm(x), *normkit.torch.layer_norm_vjp(x, x)
    return [None if t is None else t.numpy().tobytes() for t in y]
expected = bits()
child = os.fork()
if not child:
    os._exit(0 if bits() == expected else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert _python(_CALLS + script) == "0\n"


@pytest.mark.parametrize("rows", [2, 3, 7])
@pytest.mark.parametrize("apart", [0, 1, 2])
def test_rows_with_a_large_mean(host: Subject, rows: int, apart: int, bits_dtype: str) -> None:
    """Beside rows about 0, in all orders: they are taken in two ways."""
    dy, x, scale, bias = _arrays((rows, 1600), bits_dtype)
    x[apart::3] = (x[apart::3] + 50).astype(x.dtype)
    _assert_as_formulas(host, "layer_norm", [dy, x, scale, bias])
    _assert_as_formulas(host, "layer_norm", [dy, x, scale, None])


@pytest.mark.parametrize("power", [-500, 500])
def test_gradients_of_any_size(host: Subject, op: str, power: int) -> None:
    """They are in proportion to dy: a power of two changes no digit of them."""
    dy, x, scale, bias = _arrays((5, 40), "float64")
    ordinary = host.run(f"{op}_vjp", dy, x, scale, bias)
    dy[::2] *= 2.0**power
    dy[1::2] *= 0
    other = host.run(f"{op}_vjp", dy, x, scale, bias)
    alone = host.run(f"{op}_vjp", dy * 2.0**-power, x, scale, bias)
    for actual, expected in zip(other, alone, strict=True):
        assert_same_bits(actual, expected * 2.0**power)
    assert_same_bits(other[0][::2], ordinary[0][::2] * 2.0**power)


def test_a_gradient_that_is_all_mean(host: Subject, dtype: str, scale_dtype: str) -> None:
    """Rows of one number: LayerNorm's dx and dscale are 0, whatever g is rounded to."""
    dy, x, scale, bias = _arrays((9, 1), dtype)
    scale = scale.astype(dtype_of(scale_dtype))
    for of in (dy, dy.astype(np.float64)):
        dx, dscale, _ = host.run("layer_norm_vjp", of, x, scale, bias)
        assert not dx.any()
        assert not dscale.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dx_of_a_row_does_not_depend_on_others(host: Subject, dtype: str) -> None:
    """Of two elements it is 0 but for rounding errors, which show in what way a row was taken."""
    dy, x, scale, bias = _arrays((32, 2), dtype)
    alone = host.run("layer_norm_vjp", dy, x, scale, bias, eps=0.0)[0]
    twice, beside = (np.concatenate(pair) for pair in ((dy, dy), ((x + 1000).astype(x.dtype), x)))
    together = host.run("layer_norm_vjp", twice, beside, scale, bias, eps=0.0)[0]
    assert np.any(alone != 0)
    assert_same_bits(together[32:], alone)


def test_code_on_disk_fits_whatever_was_compiled_before_it(tmp_path: Any) -> None:
    """Loops that processes compile in different orders and then share do not mix."""
    for ops in (["layer_norm"], ["rms_norm", "layer_norm"], ["layer_norm", "rms_norm"]):
        script = f"print(all([same(op) for op in {ops}]))"
        assert _python(_CALLS + script, NUMBA_CACHE_DIR=str(tmp_path)) == "True\n"
    assert list(tmp_path.rglob("*.nbc"))


def test_no_place_for_code_on_disk() -> None:
    script = """
from numba.core import caching
for kind in (caching.CacheImpl, caching.CompileResultCacheImpl):
    kind._locator_classes = []
print(same("rms_norm"))
"""
    assert _python(_CALLS + script) == "True\n"


def test_without_numba() -> None:
    """Everything works; the kernel by name and `normkit info` say what to install."""
    script = """
sys.modules["numba"] = None
normkit.numpy.rms_norm(x), normkit.numpy.layer_norm_vjp(x, x)
try:
    normkit.numpy.rms_norm(x, kernel="numba")
except ValueError as error:
    print("pip install 'normkit[cpu]'" in str(error))
from normkit.cli._info import info_lines
print(*info_lines(), sep="\\n")
"""
    said = _python(_CALLS + script)
    assert said.startswith("True\n")
    assert "kernel numba      missing: numba is not installed: pip install 'normkit[cpu]'" in said


def test_names_the_reason(host: Subject) -> None:
    with pytest.raises(ValueError, match="numba: it rounds as convention 'standard' does"):
        host.run("rms_norm", np.ones((2, 4)), convention="llama", kernel="numba")


@pytest.mark.parametrize("layout", ["itself", "shifted", "strided", "fortran"])
def test_out(op: str, layout: str) -> None:
    """In place, overlapping x by a row, and not in rows."""
    import normkit.numpy

    memory = np.random.default_rng(3).standard_normal((9, 256)).astype(np.float32)
    x = memory[:-1]
    out = {
        "itself": x,
        "shifted": memory[1:],
        "strided": np.empty((8, 512), np.float32)[:, ::2],
        "fortran": np.empty((8, 256), np.float32, order="F"),
    }[layout]
    function = getattr(normkit.numpy, op)
    expected = function(x.copy(), kernel="array_api")
    assert function(x, out=out) is out
    assert_same_bits(out, expected)


@pytest.mark.parametrize("layout", ["big endian", "unaligned"])
def test_numbers_that_lie_oddly(op: str, layout: str) -> None:
    import normkit.numpy

    x = np.random.default_rng(4).standard_normal((3, 40)).astype(np.float32)
    odd = x.astype(">f4")
    if layout == "unaligned":
        odd = np.frombuffer(b"?" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
        assert not odd.flags.aligned
    function = getattr(normkit.numpy, op)
    assert_same_bits(np.asarray(function(odd), np.float32), function(x, kernel="array_api"))


def test_large_result_is_an_ordinary_tensor(op: str) -> None:
    """Its memory is asked for in large pages; that does not show."""
    torch = pytest.importorskip("torch")
    import normkit.numpy
    import normkit.torch

    x = torch.randn(3000, 1000)
    y = getattr(normkit.torch, op)(x)
    assert np.array_equal(y.numpy(), getattr(normkit.numpy, op)(x.numpy()))
    kept = y.clone()
    assert torch.equal(y.view(-1)[5:], kept.view(-1)[5:])
    assert torch.equal(y.share_memory_(), kept)
    y = getattr(normkit.torch, op)(x)
    assert y.resize_(4000, 1000).shape == (4000, 1000)
    assert torch.equal(y[:3000], kept)


@pytest.mark.parametrize("rows", [2, 1024])
def test_memory_that_is_not_there(op: str, rows: int) -> None:
    """An error, where the loops would read at address 0; also after a call that was right."""
    torch = pytest.importorskip("torch")
    import normkit.torch

    function = getattr(normkit.torch, op)
    x, weight = torch.ones(rows, 1024), torch.ones(1024)
    for _ in range(2):
        function(x, weight)
        with pytest.raises(ValueError, match="weight must be on the device of x, cpu; got meta"):
            function(x, weight.to("meta"))
        with pytest.raises(ValueError, match="residual must be on the device of x, cpu; got meta"):
            getattr(normkit.torch, f"add_{op}")(x, x.to("meta"))
        with pytest.raises(ValueError, match="dy must be on the device of x, cpu; got meta"):
            getattr(normkit.torch, f"{op}_vjp")(x.to("meta"), x)
    weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"shape \(1024,\) whose storage was freed"):
        function(x, weight)


def test_second_derivative(op: str) -> None:
    """Of the formula; a kernel that is asked for by name serves the first."""
    torch = pytest.importorskip("torch")
    import normkit.torch

    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)

    def function(x: Any) -> Any:
        return getattr(normkit.torch, op)(x, kernel="numba")

    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)
    with pytest.raises(ValueError, match="transforms, subclasses and second derivatives"):
        torch.func.vmap(function)(x)
