"""Edit the strings that the codemod leaves alone: python hand.py ROOT, after apply.py."""
import ast, os, re, subprocess, sys
from pathlib import Path
from collections import defaultdict
root=Path(sys.argv[1]).resolve()
problems=[]
VERBS="show run train sweep sample ask fit study analyse claims report look benchmark check".split()
FLAGS={"ask":{"--screen":"--ngram-baselines","--steps":"--observability","--time":"--horizon","--blocks":"--block-entropies"},
 "train":{"--begin":"--warm-start"},"run":{"--from":"--reuse","--trained":"--pool","--first":"--only-first","--silence":"--heartbeat-timeout"},
 "sweep":{"--silence":"--heartbeat-timeout","--instances":"--vary-process"},"fit":{"--check":"--goodness-of-fit"},"claims":{"--examine":"--sensitivity"},
 "benchmark":{"--board":"--leaderboard","--keep":"--copy-card"},"analyse":{"--over-training":"--over-checkpoints"}}
UNIQUE={"--screen":"--ngram-baselines","--blocks":"--block-entropies","--begin":"--warm-start","--silence":"--heartbeat-timeout","--instances":"--vary-process","--examine":"--sensitivity","--board":"--leaderboard","--over-training":"--over-checkpoints"}
DEFAULT_VERB={"tests/verbs/test_exact_verbs.py":"ask"}
def cli(path):
    rel=str(path.relative_to(root)); text=path.read_text()
    try: tree=ast.parse(text)
    except SyntaxError: return
    lines=text.split("\n"); st=[0]
    for l in lines: st.append(st[-1]+len(l.encode())+1)
    data=text.encode(); edits={}
    def put(c,new):
        s,e=st[c.lineno-1]+c.col_offset,st[c.end_lineno-1]+c.end_col_offset
        q=data[s:e].decode(); 
        if c.value in q: edits[s,e]=q.replace(c.value,new)
    for n in ast.walk(tree):
        if isinstance(n,ast.Dict): items=[]; 
        elif isinstance(n,(ast.List,ast.Tuple)): items=n.elts
        elif isinstance(n,ast.Call): items=n.args
        elif isinstance(n,ast.Constant) and isinstance(n.value,str) and n.value in UNIQUE: put(n,UNIQUE[n.value]); continue
        else: continue
        consts=[c for c in items if isinstance(c,ast.Constant) and isinstance(c.value,str)]
        flagged=any(c.value.startswith("--") for c in consts)
        verb=next((c.value for c in consts if c.value in VERBS),None)
        if verb=="ask" and (items and items[0] in consts and items[0].value=="ask" or flagged): 
            put(next(c for c in consts if c.value=="ask"),"infer")
        verb=verb or (DEFAULT_VERB.get(rel) if flagged else None)
        if verb is None: continue
        for c in consts:
            new=FLAGS.get(verb,{}).get(c.value)
            if new: put(c,new)
    if edits:
        for (s,e),o in sorted(edits.items(),reverse=True): data=data[:s]+o.encode()+data[e:]
        path.write_text(data.decode())
for p in sorted((root/"tests").rglob("*.py"))+sorted((root/"bench").rglob("*.py"))+sorted((root/"scripts").glob("*.py")): cli(p)
EDITS=[] # (path, old, new)
def sub(path,*pairs):
    p=root/path
    if not p.exists(): problems.append(f"no file {path}"); return
    t=p.read_text()
    for o,n in pairs:
        if o not in t: problems.append(f"{path}: no {o!r}")
        t=t.replace(o,n)
    p.write_text(t)
exec((Path(__file__).parent/"strings.py").read_text())
for p in sorted((root/"src").rglob("*.py")): pass
print(len(problems),"problems"); print("\n".join(problems))
