"""Runs the library with the last bit of its products, sums and logarithms moved, as other processors move it.

    python tests/perturbed_rounding.py SEED JOB.. > texts.json        SEED 0 moves nothing; JOBS are at the end of this file

Libraries of linear algebra add in an order that suits the processor, and their logarithms are right to a unit in the last
place. So the sources of the library are changed as they are imported:

    a @ b, x.sum(), einsum, norm, svd ..   each number that goes in is moved by one unit in the last place, up or down
    log, exp, softmax ..                   each number that comes out is; zeros and infinities stay
    compiled loops of the filters          each number that comes out is: the compiler may add in any order there

Which way is drawn from the seed, call by call. Sums and products that are exact in any order, such as those of counts and of
multiples of 2^-32, are left alone; so are `hmmscope.kernels`, which add in the order in which they are written.
"""

import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch

SUMS = {"sum", "nansum", "mean", "nanmean", "std", "var", "dot", "vdot", "inner", "matmul", "mm", "bmm", "mv", "einsum"}
SUMS |= {"tensordot", "cumsum", "norm", "addmm", "baddbmm", "trace", "average"}
ALGEBRA = {"svd", "svdvals", "eig", "eigh", "eigvals", "eigvalsh", "inv", "pinv", "lstsq", "solve", "qr", "cholesky"}
ALGEBRA |= {"cholesky_ex", "det", "slogdet", "matrix_rank"}
FUNCTIONS = {"log", "log2", "log10", "log1p", "exp", "exp2", "expm1", "entr", "xlogy", "tanh", "cos", "sin"}
FUNCTIONS |= {"softmax", "log_softmax", "logsumexp", "logaddexp"}


class Mover:
    """Moves numbers by one unit in the last place, each in a direction of its own."""

    def __init__(self, seed: int) -> None:
        self.rng, self.moved = np.random.default_rng(seed), 0

    def move(self, value: Any) -> Any:
        """Arrays, tensors and floats, also in tuples; anything else as it is."""
        if isinstance(value, tuple):
            parts = [self.move(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if isinstance(value, float):  # np.float64 too
            return type(value)(value * (1 + self._bits(()) * 2.0**-52)) if np.isfinite(value) else value
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            finite = np.isfinite(value)
            step = np.finfo(value.dtype).eps * self._bits(value.shape)
            self.moved += value.size
            return np.where(finite, np.where(finite, value, 0) * (1 + step), value).astype(value.dtype)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            signs = torch.from_numpy(np.asarray(self._bits(tuple(value.shape)))).to(value.device)
            self.moved += value.numel()
            finite = value.isfinite()
            factor = (1 + signs.double() * torch.finfo(value.dtype).eps).to(value.dtype)
            return torch.where(finite, value.masked_fill(~finite, 0) * factor, value)
        return value

    def _bits(self, shape: tuple[int, ...]) -> Any:
        return self.rng.integers(0, 2, size=shape) * 2.0 - 1.0

    def product(self, left: Any, right: Any) -> Any:
        """left @ right."""
        if exact((left, right)):
            return left @ right
        return self.move(left) @ right

    def call(self, name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """A call of a function or method of that name."""
        owner = getattr(function, "__self__", None)
        arrays = [part for part in (owner, *given) if isinstance(part, np.ndarray | torch.Tensor)]
        if not arrays and not (name in FUNCTIONS and all(isinstance(part, float) for part in given)):
            return function(*given, **named)
        if name in FUNCTIONS:
            return self.move(function(*given, **named)) if "out" not in named else function(*given, **named)
        if name in SUMS and exact(arrays):
            return function(*given, **named)
        if isinstance(owner, np.ndarray | torch.Tensor):
            return getattr(self.move(owner), name)(*given, **named)
        first = next((place for place, part in enumerate(given) if isinstance(part, np.ndarray | torch.Tensor)), -1)
        if first < 0:
            return function(*given, **named)
        return function(*given[:first], self.move(given[first]), *given[first + 1 :], **named)

    def after(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled loop whose results, the floats that it has written, are moved."""

        def run(*given: Any) -> Any:
            floats = [part for part in given if isinstance(part, np.ndarray) and part.dtype.kind == "f"]
            before = [part.copy() for part in floats]
            found = kernel(*given)
            for part, old in zip(floats, before, strict=True):
                changed = ~((part == old) | (np.isnan(part) & np.isnan(old)))
                part[changed] = self.move(part[changed])
            return found

        return run


def exact(arrays: Sequence[Any]) -> bool:
    """Whether a sum of products of these numbers is right in any order: few bits, or counts."""
    bits, size = 0.0, 1
    for array in arrays:
        if isinstance(array, torch.Tensor) and not array.is_floating_point():
            continue
        values = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)
        if values.dtype.kind != "f":
            continue
        values = values[np.isfinite(values) & (values != 0)].astype(np.float64)
        if not len(values):
            return True
        mantissa, exponent = np.frexp(values)
        whole = (mantissa * 2.0**53).astype(np.int64)
        lowest = (np.log2((whole & -whole).astype(np.float64)) + exponent - 53).min()
        bits, size = bits + exponent.max() - lowest, max(size, len(values))
    return bool(bits + np.log2(size) <= 53)


class Changed(ast.NodeTransformer):
    """Sources in which products, sums and functions go through a `Mover`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        return ast.copy_location(ast.Call(_moving("product"), [node.left, node.right], []), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Attribute) and node.func.attr in SUMS | ALGEBRA | FUNCTIONS):
            return node
        given = [ast.Constant(node.func.attr), node.func, *node.args]
        return ast.copy_location(ast.Call(_moving("call"), given, node.keywords), node)


def _moving(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("_last_bits", ast.Load()), name, ast.Load())


class Loader(importlib.machinery.SourceFileLoader):
    """Imports changed sources; never byte code, which is of the others."""

    mover: Mover

    def get_code(self, fullname: str) -> CodeType:
        tree = Changed().visit(ast.parse(Path(self.path).read_text()))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_last_bits"] = self.mover
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the library but those of `hmmscope.kernels`."""

    def __init__(self, mover: Mover) -> None:
        self.loader = type("Loader", (Loader,), {"mover": mover})

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "hmmscope" or name.startswith("hmmscope.kernels"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = self.loader(name, spec.origin)
        return spec


def install(seed: int) -> Mover:
    """Change everything that is imported from now on."""
    assert not any(name.startswith("hmmscope") for name in sys.modules)
    mover = Mover(seed)
    if seed:
        sys.meta_path.insert(0, Finder(mover))
        from hmmscope.kernels import simd_over_sequences

        for name in ("forward", "backward"):
            setattr(simd_over_sequences, name, mover.after(getattr(simd_over_sequences, name)))
    return mover


# What is printed ----------------------------------------------------------------------------------------------------------


def printed(*words: str) -> str:
    """What a command prints, on both streams, and its exit code."""
    from hmmscope.lab.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(list(words))
        except SystemExit as ending:
            code = ending.code
    return f"{out.getvalue()}{err.getvalue()}exit {code}"


def show() -> dict[str, str]:
    """Every entry of `show`, and the order of the lists."""
    from hmmscope.lab.verbs.catalogue import make_catalogue

    made = make_catalogue()
    return {**made["show"], **{f"list {name}": text for name, text in made["list"].items()}}


#: Processes with states that are equally likely, with sums of zero, with a limit of a block or a depth that is met exactly.
FACTS = {
    "mess3": "--blocks 4 --steps 2 --mixing --mixed_states 40 --memory 4",
    "z1r": "--blocks 4 --steps 3 --mixing --mixed_states 40 --memory 4",
    "rrxor": "--blocks 4 --steps 3 --mixed_states 60 --memory 4",
    "cyclic-rnd": "--blocks 2 --mixing --memory 2",
    "cyclic-det": "--blocks 2 --memory 2",
    "factored-mess3": "--blocks 2 --memory 2",
    "aliased-cycles": "--blocks 2 --steps 2 --memory 2",
    "post-quantum": "--blocks 4 --memory 3 --mixed_states 20",
    "bloch-walk": "--blocks 4 --memory 3 --mixed_states 20",
    "even": "--blocks 4 --steps 3 --mixed_states 20 --memory 4",
    "golden-mean": "--blocks 4 --steps 3 --mixed_states 20 --memory 4",
    "aliased-cycles-mixture": "",
    "mess3-mixture": "--screen 2x4 --samples 50",
    "ran-lds": "",
}


def facts() -> dict[str, str]:
    """What follows from processes, with everything that can be asked for."""
    return {name: printed("infer", name, *asked.replace("_", "-").split()) for name, asked in FACTS.items()}


def oracle() -> dict[str, str]:
    """Answers about sequences, among them impossible ones and ones of probability one."""
    from hmmscope import make_process

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, asked in (
            ("mess3", "--smooth --viterbi --memory 3 --ngrams 3 --paths 2"),
            ("cyclic-det", "--smooth --viterbi --memory 2"),
            ("cyclic-rnd", "--smooth --viterbi"),
            ("factored-mess3", "--smooth --viterbi --memory 2"),
            ("aliased-cycles", "--smooth --viterbi --memory 2 --ngrams 2"),
            ("z1r", "--smooth --viterbi --memory 2"),
            ("word-problem", ""),
            ("post-quantum", "--memory 2"),
            ("bloch-walk", "--memory 2"),
            ("mess3-mixture", "--ngrams 2"),
        ):
            process = make_process(name)
            drawn = process.sample_paths(np.arange(3), np.arange(12) == 0, 0).observations.tolist()
            constant = [[symbol] * 5 for symbol in range(min(process.num_symbols, 3))]
            path = Path(folder, f"{name}.json")
            path.write_text(json.dumps([*drawn, *constant, [1, 0, 0, 1]]))
            found[name] = printed("infer", name, str(path), *asked.split())
    return found


def laws() -> dict[str, str]:
    """Digests of processes, also of those that are made of others."""
    from hmmscope import make_process, registry
    from hmmscope.processes.combine import as_labelled, noisy, product, uniform_noise
    from hmmscope.processes.driven_as_hmm import augment

    large, given = {"random-mixture": {"num_components": 16, "num_states": 8}}, {"data", "file", "given"}
    made = {
        name: make_process(name, **large.get(name, {})) for name in registry.entries("process") if name not in given
    }
    found = {name: process.digest for name, process in made.items()}
    for name in ("mess3", "rrxor", "cyclic-rnd", "factored-mess3"):
        found[f"{name} augmented"] = augment(made[name]).digest + augment(made[name], "pre").digest
    for name in ("mess3", "factored-mess3", "aliased-cycles", "random-hmm", "ran-hmm"):
        process = made[name]
        channels = [noisy(process, uniform_noise(process.num_symbols, chance)) for chance in (0.01, 0.1, 0.3)]
        found[f"{name} combined"] = "".join(
            other.digest for other in (*channels, as_labelled(process), product(process, made["mess3"]))
        )
    for seed in range(4):
        for name in ("low-rank-hmm", "markov-chain", "ginc", "mess3-mixture"):
            found[f"{name} {seed}"] = make_process(name, seed=seed).digest
    for coupling in ("conditional", "hidden"):
        found[coupling] = make_process("factored-mess3", coupling=coupling).digest
    return found


def claims() -> dict[str, str]:
    """Verdicts of all claims on what is kept, by the rules as they are, with every sentence beside them."""
    from hmmscope.lab.evidence.ledger import read_tables
    from hmmscope.lab.experiments.derived_findings import derive_findings
    from hmmscope.lab.experiments.experiment import experiment_named

    sys.path.append(str(Path(__file__).parents[1] / "scripts"))  # imports the library, which `install` changes
    import kept_results

    found = {}
    for folder in sorted((kept_results.RESULTS / "small").iterdir()):
        about, tables = read_tables(folder)
        data = derive_findings(experiment_named(about["experiment"]), tables, about["scale"])["findings.json"]
        found[folder.name] = json.dumps(data, indent=0, default=str)
    return {name: "\n".join(line for line in text.split("\n") if '"' in _value(line)) for name, text in found.items()}


def _value(line: str) -> str:
    """What stands behind the key in a line of JSON."""
    return line.partition('": ')[2] or line


JOBS: dict[str, Callable[[], dict[str, str]]] = {
    "show": show,
    "facts": facts,
    "oracle": oracle,
    "laws": laws,
    "claims": claims,
}


def main() -> None:
    """Print the texts of the jobs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    mover = install(int(sys.argv[1]))
    texts = {job: JOBS[job]() for job in sys.argv[2:]}
    print(json.dumps({"moved": mover.moved, "texts": texts}))


if __name__ == "__main__":
    main()
