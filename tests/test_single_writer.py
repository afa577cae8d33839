"""One gate for bytes, by a scan of the source: who opens and changes files, and who prints.

Files are changed by disk, store and rundir alone, and opened to be read by disk alone, which bounds what it reads. No
module reads a format that can run code. What is printed goes through `text.say`, which makes it visible.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

import hmmscope
import hmmscope_papers
import hmmscope_studies

PACKAGE = Path(hmmscope.__file__).parent
OUTER = [Path(str(one.__file__)).parent for one in (hmmscope_papers, hmmscope_studies)]
EVERY = sorted(path for folder in (PACKAGE, *OUTER) for path in folder.rglob("*.py"))


def source_of(name: str) -> Path:
    """A module by its path below src/hmmscope or src/."""
    return next(path for path in EVERY if path.as_posix().endswith((f"/src/{name}", f"/src/hmmscope/{name}")))


WRITERS = {"storage/disk.py", "storage/store.py", "storage/rundir.py", "storage/journal.py"}
#: Who opens other files than those of users: the system's own, and those of this package.
OPENERS = {
    "storage/disk.py",
    "system_info.py",
    "kernels/compile_units.py",
    "lab/report/page.py",
    "lab/report/drawing.py",
}
OPENERS |= {"registry.py", "lab/verbs/catalogue.py"}
OPENERS |= {
    "interop/huggingface.py",
    "interop/pretrained.py",
    "interop/smollm2.py",
}  # by transformers, which reads safetensors alone
#: Who prints: `say`, and what tells of errors and progress on the standard error.
PRINTERS = {
    "text.py",
    "interop/smollm2.py",
    "lab/cli.py",
    "lab/worker.py",
    "lab/sweeps/table.py",
    "sklearn/monitor.py",
    "progress.py",
    "training/watch.py",
}

#: The one module that runs code: model files that a user names on the command line.
RUNNERS = {"lab/model_file.py": "exec"}

# Dotted names of calls. A name after `*.` is forbidden on any object but the modules of WRITERS.
RUNS_CODE = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"}
CODE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
WRITES = {
    *("torch.save", "save_file", "*.save_file", "*.tofile", "*.to_csv", "*.to_parquet", "*.extractall"),
    *("*.write_text", "*.write_bytes", "*.mkdir", "*.touch", "*.unlink", "*.rmdir", "*.symlink_to", "*.hardlink_to"),
    *("os.open", "os.write", "os.rename", "os.renames", "os.replace", "os.remove", "os.removedirs", "os.truncate"),
    *("os.link", "os.symlink", "os.mkfifo", "os.makedirs", "os.chmod", "os.fdopen"),
    *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copyfileobj", "shutil.copytree", "shutil.move"),
    *("tempfile.mkstemp", "tempfile.NamedTemporaryFile", "tempfile.TemporaryFile", "tempfile.SpooledTemporaryFile"),
    *("shutil.rmtree", "shutil.make_archive", "shutil.unpack_archive"),
}
#: Dotted names of calls that open a file to read it; `resource` names what may be read beside `disk`.
READS = {"open", "io.open", "*.read_text", "*.read_bytes", "np.load", "np.loadtxt", "np.genfromtxt", "np.fromfile"}
READS |= {"np.memmap", "safe_open", "load_file", "*.load_file", "json.load", "*.read_csv", "*.read_parquet"}
READS |= {"tarfile.open", "gzip.open", "Path.open", "path.open", "*.from_pretrained"}
WRITES_UNLESS_BUFFER = {"np.save", "np.savez", "np.savez_compressed", "np.savetxt", "*.savefig", "*.write_html"}
WRITE_MODE = re.compile(r"[rwaxbt+U]*[wax+][rwaxbt+U]*")


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute; an unnamed object is `?`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def matches(name: str, names: set[str]) -> bool:
    owner, _, last = name.rpartition(".")
    return name in names or bool(owner not in ("", "store", "rundir", "disk") and f"*.{last}" in names)


def opens_for_writing(call: ast.Call, name: str) -> bool:
    if name.rpartition(".")[2] != "open" or name == "os.open":
        return False
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    modes += (
        call.args[1:2] if name in ("open", "io.open") else [arg for arg in call.args if isinstance(arg, ast.Constant)]
    )
    texts = [mode.value if isinstance(mode, ast.Constant) else "w" for mode in modes]
    return any(isinstance(text, str) and bool(WRITE_MODE.fullmatch(text)) for text in texts)


@lru_cache(maxsize=1)
def nodes(source: str) -> list[ast.AST]:
    """Every node of a module, which several questions are asked about in a row."""
    return list(ast.walk(ast.parse(source)))


def offences(source: str, writer: bool = False) -> list[str]:
    """`line: what` for each forbidden call or import of a module."""
    found = []
    assigned = [node for node in nodes(source) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    in_memory = {
        ast.unparse(node.targets[0])
        for node in assigned
        if dotted(node.value.func).rpartition(".")[2] in ("BytesIO", "StringIO")  # type: ignore[attr-defined]
    }
    for node in nodes(source):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.lineno}: import {name}" for name in modules if name.split(".")[0] in CODE_MODULES]
        if isinstance(node, ast.ImportFrom):
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found += [f"{node.lineno}: {name}" for name in named & (RUNS_CODE | (set() if writer else WRITES))]
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func).replace("numpy.", "np.")
        first = ast.unparse(node.args[0]) if node.args else ""
        pickles = any(k.arg == "allow_pickle" and not (isinstance(k.value, ast.Constant) and k.value.value is False)
                      for k in node.keywords)  # fmt: skip
        writes = (matches(name, WRITES) and (name, first) != ("os.open", "os.devnull")) or (
            matches(name, WRITES_UNLESS_BUFFER) and first not in in_memory
        )
        if matches(name, RUNS_CODE) or pickles or (not writer and (writes or opens_for_writing(node, name))):
            found.append(f"{node.lineno}: {name}")
    return found


def calls(source: str, names: set[str]) -> list[str]:
    """`line: what` for each call of one of these names."""
    found = [node for node in nodes(source) if isinstance(node, ast.Call)]
    dotted_names = [(node.lineno, dotted(node.func).replace("numpy.", "np.")) for node in found]
    return [f"{line}: {name}" for line, name in dotted_names if matches(name, names)]


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.as_posix().rpartition("/src/")[2])
def test_module_leaves_files_to_the_store(path: Path) -> None:
    name, source = path.as_posix().rpartition("/src/")[2].removeprefix("hmmscope/"), path.read_text()
    found = [one for one in offences(source, name in WRITERS) if one.partition(": ")[2] != RUNNERS.get(name)]
    assert found == []
    assert name in OPENERS or calls(source, READS) == []
    assert name in PRINTERS or calls(source, {"print", "sys.stdout.write", "sys.stderr.write"}) == []


@pytest.mark.parametrize(
    "line",
    [
        *("open(path, 'w')", "open(path, mode='ab')", "open(path, 'r+')", "open(path, mode)", "path.open('x')"),
        *("io.open(path, 'wb')", "Path(p).open(mode='w')", "gzip.open(path, 'wt')"),
        *("path.write_text('x')", "Path(p).write_bytes(b'')", "(folder / 'x').mkdir()", "path.touch()"),
        *(
            "os.open(path, os.O_WRONLY)",
            "os.replace(a, b)",
            "os.makedirs(p)",
            "shutil.copyfile(a, b)",
            "shutil.rmtree(p)",
        ),
        *(
            "np.save(path, x)",
            "numpy.savez(path, x)",
            "np.savetxt(path, x)",
            "array.tofile(path)",
            "torch.save(x, buffer)",
        ),
        *("figure.savefig(path)", "plt.savefig('a.pdf')", "safetensors.torch.save_file(t, p)", "save_file(t, p)"),
        "tempfile.NamedTemporaryFile()",
        "from os import replace",
        "buffer = path\nnp.savez(buffer, x=x)",
    ],
)
def test_scanner_finds_writing(line: str) -> None:
    assert offences(f"x = 1\n{line}\n")
    assert offences(f"x = 1\n{line}\n", writer=True) == []


@pytest.mark.parametrize(
    "line",
    [
        *("open(path)", "open(path, 'rb')", "path.read_text()", "(folder / 'x').read_bytes()", "np.load(path)"),
        *("safetensors.torch.load_file(p)", "json.load(file)", "pd.read_csv(p)", "Path.open(p)"),
    ],
)
def test_scanner_finds_reading(line: str) -> None:
    assert calls(line, READS)
    assert not calls("disk.read_bytes(p, managed=True)\nstore.read_text(p, limit=9)\nRunDir.open(p)", READS)


@pytest.mark.parametrize(
    "line",
    [
        *("torch.load(path)", "eval('1')", "exec(text)", "yaml.load(text, Loader)", "yaml.unsafe_load(text)"),
        *("import pickle", "from pickle import loads", "import joblib", "np.load(path, allow_pickle=True)"),
        "np.load(path, allow_pickle=flag)",
    ],
)
def test_scanner_finds_what_runs_code(line: str) -> None:
    assert offences(line)
    assert offences(line, writer=True)


@pytest.mark.parametrize(
    "line",
    [
        *("open(path)", "open(path, 'rb')", "path.open()", "path.read_text()", "RunDir.open(path, lock=True)"),
        *("store.write_text(path, 'x')", "rundir.write_bytes(path, b'')", "model.eval()", "yaml.safe_load(text)"),
        *(
            "buffer = io.BytesIO()\nnp.savez(buffer, x=x)",
            "out = BytesIO()\nfigure.savefig(out, format='pdf')",
            "np.load(path, allow_pickle=False)",
        ),
        *("os.open(os.devnull, os.O_WRONLY)", "text.replace('a', 'b')"),
    ],
)
def test_scanner_lets_reading_pass(line: str) -> None:
    assert offences(line) == []


# ---------------------------------------------------------------------------------------------------------------------
# Who reads a finished folder opens its seal first

#: Ways to read a file of a folder of ours; of some only with ``managed=True``.
OWN_READS = {"store.read_table", "packed.read_tables", "read_tables"}
OWN_IF_SAID = {"store.read_json", "store.read_tensors", "disk.reading", "disk.read_bytes", "disk.open_own"}
#: What compares the files of a folder with its seal before it returns.
OPENS = {
    "open_sealed",
    "unsealed",
    "seal_report",
    "RunDir.open",
    "read_run",
    "load_run",
    "read_experiment",
    "read_folder",
}
#: Modules that read what another has opened for them, which is named, or what no seal covers.
OPENED_ELSEWHERE = {
    "lab/report/state_diagram.py": "lab/report/folder.py",
    "lab/verbs/findings.py": "lab/report/drawing.py",
    "hmmscope_studies/benchmark/recompute.py": "hmmscope_studies/benchmark/checking.py",
    "hmmscope_studies/benchmark/flags.py": "hmmscope_studies/benchmark/board.py",
    "lab/tasks/task.py": "failures of tasks at work",
    "lab/tasks/local.py": "logs of tasks at work",
    "lab/verbs/audit.py": "lab/evidence/ledger.py",
    "interop/huggingface.py": "an export, whose manifest it compares",
}


def unopened(source: str) -> list[str]:
    """Reads of files of ours in a module that opens no seal."""
    found = []
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    if any(dotted(node.func) in OPENS or dotted(node.func).rpartition(".")[2] in OPENS for node in nodes):
        return []
    for node in nodes:
        name = dotted(node.func)
        own = {k.arg: ast.unparse(k.value) for k in node.keywords}.get("managed")
        if (name in OWN_READS and own != "False") or (
            name in OWN_IF_SAID and (own == "True" or name == "disk.open_own")
        ):
            found.append(f"{node.lineno}: {name}")
    return found


@pytest.mark.long
def test_who_reads_a_finished_folder_opens_its_seal() -> None:
    bare = {}
    for path in EVERY:
        name = path.as_posix().rpartition("/src/")[2].removeprefix("hmmscope/")
        if not name.startswith("storage/") and (found := unopened(path.read_text())):
            bare[name] = found
    assert {name: found for name, found in bare.items() if name not in OPENED_ELSEWHERE} == {}
    assert set(OPENED_ELSEWHERE) == set(bare)  # no exception that nobody needs
    openers = [name for name in OPENED_ELSEWHERE.values() if name.endswith(".py")]
    assert [name for name in openers if not any(f"{one}(" in source_of(name).read_text() for one in OPENS)] == []


def test_seals_are_read_by_storage_alone() -> None:
    """A seal whose files are not compared says nothing: others call `open_sealed`, or ask for a digest to bind to."""
    modules = [path for path in EVERY if path.parent.name != "storage"]
    assert [path.name for path in modules if "read_seal" in path.read_text()] == []


def test_the_scan_finds_a_reader_without_a_seal() -> None:
    bare = (
        "about = store.read_json(folder / 'experiment.json', managed=True)\nrows = store.read_table(folder / 'x.jsonl')"
    )
    assert unopened(bare) == ["1: store.read_json", "2: store.read_table"]
    assert unopened(f"seals.open_sealed(folder)\n{bare}") == []
    assert unopened("store.read_table(path, managed=False)\nstore.read_json(path)") == []
