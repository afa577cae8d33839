"""mypy as a library: one build with types of all expressions."""
import os, sys, time, io
from pathlib import Path
from mypy import build, options as mo
from mypy.modulefinder import BuildSource
from mypy.config_parser import parse_config_file

def sources(root: Path, extra=()):
    out, seen = [], set()
    def add(path, module):
        if module in seen:
            module = "x_" + str(path.relative_to(root).with_suffix("")).replace("/", "_").replace("-", "_")
        seen.add(module)
        out.append(BuildSource(str(path), module, None))
    for p in sorted((root/"src").rglob("*.py")):
        m = ".".join(p.relative_to(root/"src").with_suffix("").parts)
        if m.endswith(".__init__"): m = m[:-9]
        add(p, m)
    for p in sorted((root/"bench").rglob("*.py")):
        m = ".".join(p.relative_to(root).with_suffix("").parts)
        add(p, m[:-9] if m.endswith(".__init__") else m)
    for p in sorted((root/"tests").rglob("*.py")):
        if "probes" in p.parts and False: continue
        add(p, p.stem if p.stem not in ("conftest","__main__") else "x_"+"_".join(p.relative_to(root).with_suffix("").parts))
    for p in sorted((root/"scripts").glob("*.py")):  # not this tool, nor the documents that it writes as modules
        add(p, p.stem if p.stem not in seen else "x_scripts_"+p.stem)
    for p, m in extra:
        add(p, m)
    return out

def forget_ours(o, root):
    import shutil
    for base in Path(o.cache_dir).glob("*"):
        if not base.is_dir(): continue
        for p in list(base.iterdir()):
            n=p.name.split(".")[0]
            if n in ("hmmscope","hmmscope_papers","bench") : (shutil.rmtree(p) if p.is_dir() else p.unlink())
            elif p.is_file() and n in OURS: p.unlink()
OURS=set()
def analyse(root, extra=()):
    root = Path(root).resolve()
    os.chdir(root)
    o = mo.Options()
    parse_config_file(o, lambda: None, "pyproject.toml", sys.stdout, sys.stderr)
    o.export_types = True; o.preserve_asts = True
    # what other libraries say is cached; our modules are read anew
    o.incremental = True; o.cache_dir = str(Path(__file__).parent/"cache"); o.sqlite_cache = False; o.skip_cache_mtime_checks = False
    forget_ours(o, root)
    o.check_untyped_defs = True; o.python_executable = str(root/".venv/bin/python")
    o.namespace_packages = True; o.explicit_package_bases = True
    o.mypy_path = ["src", ".", "tests"]
    o.warn_unused_ignores = False
    o.disable_error_code = ["name-defined", "valid-type"]
    o.process_error_codes(error_callback=print)
    o.allow_redefinition = False
    t = time.time()
    srcs = sources(root, extra)
    OURS.update(s.module for s in srcs); forget_ours(o, root)
    res = build.build(srcs, o)
    print(f"mypy: {time.time()-t:.0f} s, {len(res.errors)} errors, {len(res.types)} types", file=sys.stderr)
    return res, {s.module: s.path for s in srcs}
if __name__ == "__main__":
    res, paths = analyse(sys.argv[1])
    open("scripts/renames/errors.txt","w").write("\n".join(res.errors))
    n=0
    for m in paths:
        if m not in res.files: print("missing", m)
    import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024, "MB")
