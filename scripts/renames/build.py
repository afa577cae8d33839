import sys, time, os
from mypy import build, options as mo, modulefinder
from mypy.config_parser import parse_config_file
def analyse(root, extra=(), packages=("src/hmmscope","src/hmmscope_papers","bench","tests","scripts")):
    os.chdir(root)
    o = mo.Options()
    parse_config_file(o, lambda: None, "pyproject.toml", sys.stdout, sys.stderr)
    o.export_types=True; o.preserve_asts=True; o.incremental=False; o.cache_dir=os.devnull
    o.check_untyped_defs=True; o.python_executable=sys.executable
    o.namespace_packages=True; o.explicit_package_bases=True; o.show_traceback=True
    o.mypy_path=["src",".","tests"]
    srcs=[]
    return o
if __name__=="__main__":
    pass
