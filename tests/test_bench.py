"""The bench command on tiny arrays, its arithmetic, and the page of the results. No time is judged."""

import importlib
import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import performance_page
import pytest
from PIL import Image
from typer.testing import CliRunner

from normkit.cli._app import app
from normkit.cli._bench import _bars, _command, _timing
from normkit.cli._bench._chart import fingerprint
from normkit.cli._bench._memory import peak_bytes
from normkit.cli._bench._plan import Filters, Group, full, quick
from normkit.cli._bench._ratios import ratio
from normkit.cli._bench._report import missing
from normkit.cli._bench._run import run
from normkit.cli._bench._timing import Effort, in_turn

_COMMAND = [sys.executable, "-c", "from normkit.cli import main; main()", "bench"]
_SCHEMA = json.loads(files("normkit.data").joinpath("bench.schema.json").read_text("utf-8"))
_TINY = ("--shape", "2x8", "--dtype", "float32", "--threads", "1", "--rounds", "2")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=600
    )


def _measured(folder: Path, *arguments: str) -> dict:
    """The result that the command writes into a folder, and draws."""
    picture = folder / "ratios.png"
    done = _run(*_TINY, *arguments, "--json", str(folder), "--png", str(picture))
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = folder.glob("*.json")
    result = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(result, _SCHEMA)
    for entry in result["measured"]:
        assert entry["missing"] == {}
        assert entry["kernel"] != "none"
        assert all(len(times) == 2 for times in entry["nanoseconds"].values())
    with Image.open(picture) as image:
        assert image.info["Source"] == fingerprint(result)
    return result


def test_result_of_numpy(tmp_path: Path) -> None:
    result = _measured(tmp_path, "--framework", "numpy")
    assert [entry["passes"] for entry in result["measured"]] == ["forward", "residual"]
    forward, residual = (
        {n.partition(" ")[0] for n in e["nanoseconds"]} for e in result["measured"]
    )
    assert forward == {"normkit", "normkit.out", "numpy", "copy", "copyto"}
    assert residual == {"normkit", "numpy", "copy", "copyto"}


def test_result_of_torch_and_jax(tmp_path: Path) -> None:
    for name in ("torch", "jax", "flax", "equinox", "keras"):
        pytest.importorskip(name)
    result = _measured(tmp_path, "--pass", "forward+backward")
    assert result["missing"] == {}
    in_torch, in_jax = ({n.partition(" ")[0] for n in e["nanoseconds"]} for e in result["measured"])
    assert in_torch == {"normkit", "torch", "clone", "copy_"}
    assert in_jax == {"normkit", "flax", "equinox", "keras", "copy"}
    # x is 2 rows of 8; torch's own LayerNorm keeps x, and a mean and a factor for each row
    (saved,) = [e["saved"] for e in result["memory"] if e["framework"] == "torch"]
    assert saved["torch layer_norm"] == 4 * (16 + 2 * 2)


def test_bars_are_judged() -> None:
    pytest.importorskip("torch")
    few = ("--dtype", "float32", "--pass", "forward", "--threads", "1", "--rounds", "1")
    done = _run("--bars", "--shape", "1x4096", "--framework", "torch", *few)
    assert (done.returncode, done.stderr) == (0, "")
    assert "torch, forward: normkit rms_norm at least 1 times as fast as torch" in done.stdout
    assert len(re.findall(r"^  1x4096 +float32 .*(?:met|NOT MET)$", done.stdout, re.MULTILINE)) == 2
    assert re.search(r"^[012] of 2 met$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--shape", "768"], "a shape is rows x width, as 4096x768; got 768"),
        (["--dtype", "float8"], "there is no dtype float8; there are float32, bfloat16, float16"),
        (["--pass", "backward"], "there is no pass backward; there are forward, .*"),
        (["--framework", "tensorflow"], "there is no framework tensorflow; there are .*"),
        (["--op", "norm"], "there is no op norm; there are rms_norm, layer_norm"),
        (["--contender", "liger"], "there is no contender liger; there are torch, .*"),
        (["--threads", "two"], "--threads is a list of numbers, as 1,2; got two"),
        (["--threads", "4096"], r"--threads 4096 is more than the \d+ processors here"),
        (["--json", "/no/such/file.json"], "there is no folder /no/such for file.json"),
        (["--bars", "--shape", "3x5"], "nothing is left to measure; see normkit bench --help .*"),
    ],
)
def test_errors_are_one_line_and_exit_2(arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(f"normkit bench: {text}\n", done.stderr)


class _Clock:
    """Time that passes only where it is told, on a machine that gets slower with each call."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def function(self, name: str, cost: float) -> object:
        def call() -> None:
            self.calls.append(name)
            self.now += cost * (1 + 0.001 * len(self.calls))

        return call


def test_contenders_take_turns_and_drift_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(_timing.time, "perf_counter", lambda: clock.now)
    # 30 ms a call, so that there is neither a warm call nor a second one in a turn
    functions = {name: clock.function(name, c) for name, c in (("a", 0.03), ("b", 0.09))}
    found = in_turn(functions, Effort(rounds=8, turn_s=0.03, limit_s=10.0))
    assert clock.calls == ["a", "b", *["a", "b", "b", "a"] * 4]
    assert len(found["a"]) == len(found["b"]) == 8
    drift = found["a"][-1] / found["a"][0]
    entry = {"nanoseconds": found}
    # a's first turn is the third call, its last the eighteenth; within a round it is one call
    assert drift == pytest.approx(1.018 / 1.003)
    assert ratio(entry, "b", "a").middle == pytest.approx(3, rel=0.001)


def test_short_calls_are_repeated_and_long_ones_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(_timing.time, "perf_counter", lambda: clock.now)
    found = in_turn({"a": clock.function("a", 0.0001)}, Effort(3, turn_s=0.01, limit_s=10.0))
    assert len(found["a"]) == 3
    assert len(clock.calls) > 3 * 90
    found = in_turn({"a": clock.function("a", 1.0)}, Effort(100, turn_s=0.01, limit_s=2.0))
    assert len(found["a"]) == 5  # no fewer, whatever the limit


def test_ratio_by_hand() -> None:
    entry = {"nanoseconds": {"a": [10, 10, 10, 10, 10], "b": [50, 10, 30, 20, 40]}}
    found = ratio(entry, "b", "a")
    assert tuple(found) == (2, 3, 4)
    assert str(found) == "3 (2 to 4)"
    assert ratio(entry, "c", "a") is None


def _result(framework: str, shape: list[int], dtype: str, **times: list[int]) -> dict:
    names = {name.replace("__", " "): each for name, each in times.items()}
    entry = {"framework": framework, "passes": "forward", "shape": shape, "dtype": dtype}
    rest = {"threads": 1, "kernel": "k", "nanoseconds": names, "missing": {}}
    return {"measured": [entry | rest], "memory": [], "missing": {}}


def test_verdicts_by_hand() -> None:
    # 3 times as fast is asked of float32, 5 times of bfloat16; 1.5 times the time of a copy is left
    times = {"normkit__rms_norm": [10], "torch__rms_norm": [40], "clone": [7]}
    found = {
        (v.bar.theirs, v.bar.faster): v.met
        for v in _bars.verdicts(_result("torch", [4096, 768], "float32", **times))
    }
    assert found == {("torch rms_norm", 3): True, ("clone", 1 / 1.5): True}
    found = [v.met for v in _bars.verdicts(_result("torch", [4096, 768], "bfloat16", **times))]
    assert found == [False, True]


def test_every_bar_is_part_of_the_full_plan() -> None:
    planned = {group[:5] for group in full([1, 2])}
    asked = _bars.groups([1, 2])
    assert {group[:5] for group in asked} <= planned
    assert {group[:5] for group in quick([2])} <= planned
    (judged,) = [g for g in asked if g[:4] == ("torch", "forward", (4096, 768), "float32")][:1]
    assert {"torch rms_norm", "clone", "torch.compile rms_norm"} <= set(judged.contenders)


def test_peak_bytes_of_numpy() -> None:
    """Three arrays of 64 MiB, counted rightly although other threads may free memory meanwhile."""
    size = 2**26
    found = peak_bytes(lambda: np.ones(size, np.uint8) + np.ones(size, np.uint8)[:1])
    if found is None:
        pytest.skip("the system does not tell")
    assert round(found / size) == 3


@pytest.mark.parametrize("passes", ["forward", "forward+backward", "residual"])
@pytest.mark.parametrize("framework", ["torch", "jax", "numpy"])
def test_contenders_compute_the_same(framework: str, passes: str) -> None:
    """Rows of 8 float32 numbers: sums of 8 are off by a few ULP, of results below 8 by 2^-18."""
    for name in {"torch": ("torch",), "jax": ("flax", "equinox", "keras")}.get(framework, ()):
        pytest.importorskip(name)
    host = importlib.import_module(f"normkit.cli._bench._{framework}")
    if (framework, passes) == ("numpy", "forward+backward"):
        pytest.skip("the plain formula has no backward pass")
    made = host.contenders(Group(framework, passes, (4, 8), "float32", 1))
    for op in ("rms_norm", "layer_norm"):
        names = [n for n in made if n.endswith(f" {op}") and ".compile" not in n]
        assert len(names) >= 2
        wanted = _y_and_dx(made[f"normkit {op}"]())
        for name in names:
            for actual, right in zip(_y_and_dx(made[name]()), wanted, strict=False):
                np.testing.assert_allclose(actual, right, rtol=0, atol=2.0**-18, err_msg=name)


def _y_and_dx(function: object) -> list[np.ndarray]:
    """What has the shape of x; the order of the parameters' gradients is each library's own."""
    found: list[np.ndarray] = []

    def walk(part: object) -> None:
        if isinstance(part, tuple):
            for one in part:
                walk(one)
        elif getattr(part, "shape", None) == (4, 8):
            found.append(np.asarray(part.detach() if hasattr(part, "detach") else part))

    walk(function())
    assert found
    return found


def test_what_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flax")
    from normkit.cli._bench._worker import measure

    monkeypatch.setitem(sys.modules, "equinox", None)
    group = Group("jax", "forward", (2, 8), "float32", 1)
    filters = Filters(ops=["rms_norm"], contenders=["equinox", "flax"])
    entry = measure(group, filters, Effort(1, 0.0, 1.0))
    assert set(entry["nanoseconds"]) == {"normkit rms_norm", "flax rms_norm"}
    result = {"measured": [entry], "missing": {}}
    assert missing(result)["equinox rms_norm"].startswith("ModuleNotFoundError")


def test_what_takes_too_long_is_left_out_and_named() -> None:
    groups = [Group("numpy", "forward", (2, 8), "float32", 1)]
    result = run(groups, [], Filters(), Effort(1, 0.0, 1.0), budget_s=0.01)
    assert result["measured"] == []
    assert result["missing"]["time, numpy, 1 threads"] == "1 of 1 left out: the time was up"


def test_nothing_measured_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_command, "_QUICK_S", 0.01)
    done = CliRunner().invoke(app, ["bench", "--quick", "--framework", "numpy"])
    assert done.exit_code == 2
    assert re.match(
        r"normkit bench: nothing was measured: (.* \(not installed\); )?time, numpy, \d+ threads",
        done.stderr,
    )
    assert done.stderr.count("\n") == 1


def test_page_and_pictures_show_the_files() -> None:
    """`make bench` writes them; without measuring: python benchmarks/performance_page.py."""
    assert performance_page.PATH.read_text(encoding="utf-8") == performance_page.page()
    assert performance_page.results()
    for name, result in performance_page.results().items():
        jsonschema.validate(result, _SCHEMA)
        with Image.open(performance_page.picture(name)) as image:
            assert image.info["Source"] == fingerprint(result)
