"""docs/migration.md from renames.py:  python migration.py ROOT"""
import re, sys
from pathlib import Path
ns={}; exec((Path(__file__).parent/"renames.py").read_text(),ns)
root=Path(sys.argv[1])
SKIP=("hmmscope.kernels","hmmscope.engine","hmmscope_papers")
def module(full):
    parts=full.split("."); return ".".join(ns["MODULES"].get(".".join(parts[:i+1]),p) for i,p in enumerate(parts))
def public(full): return full.startswith("hmmscope.") and not any(p.startswith("_") and not p.startswith("__") for p in full.split(".")) and not full.startswith(SKIP)
def cls(full): return ns["SYMBOLS"].get(full,full.rpartition(".")[2])
def table(rows): return ["| was | is |","|---|---|",*[f"| `{a}` | `{b}` |" for a,b in sorted(set(rows),key=lambda r:r[0].lower())],""]
front=set(re.findall(r"^    from \S+ import (\w+) as \1$",(root/"src/hmmscope/__init__.py").read_text(),re.M))|set(re.findall(r"^    from \S+ import (\w+) as \1$",(root/"src/hmmscope/lab/__init__.py").read_text(),re.M))
out=["# Names that changed","","Version 0.2.0 gives public names the terms of the field. There are no aliases: replace the old name by the new one.",
 "Stored files keep their keys, so old run folders, process files, configurations and protocols open as before.",""]
out+=["## Command line",""]+table([("hmmscope ask","hmmscope infer"),("ask --screen","infer --ngram-baselines"),("ask --steps","infer --observability"),("ask --time","infer --horizon"),("ask --blocks","infer --block-entropies"),
 ("train --begin","train --warm-start"),("run --from","run --reuse"),("run --trained","run --pool"),("run --first","run --only-first"),("run --silence","run --heartbeat-timeout"),("sweep --silence","sweep --heartbeat-timeout"),
 ("sweep --instances","sweep --vary-process"),("fit --check","fit --goodness-of-fit"),("claims --examine","claims --sensitivity"),("benchmark --board","benchmark --leaderboard"),("benchmark --keep","benchmark --copy-card"),
 ("analyse --over-training","analyse --over-checkpoints"),("--training.num_grains","--training.accumulation_steps"),("--training.milestones","--training.num_log_checkpoints")])
out+=["## Names of `hmmscope` and `hmmscope.lab`",""]+table([(k.rpartition(".")[2],v) for k,v in ns["SYMBOLS"].items() if public(k) and v in front])
out+=["## Other classes and functions",""]+table([(k,module(k.rpartition(".")[0])+"."+v) for k,v in ns["SYMBOLS"].items() if public(k) and v not in front and ".verbs." not in k])
out+=["## Methods, properties and fields",""]+table([(f"{k.split('.')[-2]}.{k.rpartition('.')[2]}",f"{cls(k.rpartition('.')[0])}.{v}") for k,v in ns["MEMBERS"].items() if public(k) and ".verbs." not in k])
def fn(o):
    c,_,f=o.rpartition(".")
    if f in ("__init__","__call__"): return c.rpartition(".")[2],cls(c)
    owner=c.rpartition(".")[2]
    if owner[:1].isupper(): return f"{owner}.{f}", f"{cls(c)}.{ns['MEMBERS'].get(o,f)}"
    return f,cls(o)
out+=["## Arguments",""]+table([(f"{fn(k.rpartition('.')[0])[0]}({k.rpartition('.')[2]}=)",f"{fn(k.rpartition('.')[0])[1]}({v}=)") for k,v in ns["PARAMS"].items() if public(k) and ".verbs." not in k]
 +[("(starts=)","(reset_mask=)"),("(corpus=)","(dataset=)"),("(num_twins=)","(num_controls=)"),("build(ports, generator)","build(model_io, generator)"),("fit(heard=)","fit(callback=)")])
out+=["## Modules",""]+table([(k,module(k)) for k in ns["MODULES"] if k.startswith("hmmscope.") and public(k+".x")])
(root/"docs/migration.md").write_text("\n".join(out).rstrip()+"\n")
p=root/"docs/index.md"; t=p.read_text()
if "migration" not in t: p.write_text(t.replace("```{toctree}\n:maxdepth: 1\n:hidden:\n\nreference\n```","```{toctree}\n:maxdepth: 1\n:hidden:\n\nreference\nmigration\n```"))
