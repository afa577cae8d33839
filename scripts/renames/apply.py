"""venv/bin/python apply.py ROOT: the whole rename on a checkout."""
import sys, re, json, subprocess, os, ast, tokenize, io
from pathlib import Path
from collections import defaultdict
from codemod import *
import texts

def main(root, table, analysed=None):
    root=Path(root).resolve()
    docs=documents(root)
    cm=Codemod(root,table,docs,analysed)
    before={p:Path(p).read_text() for p in cm.paths.values()}
    cm.run()
    out=HERE/"out"; out.mkdir(exist_ok=True)
    for n in ("conflicts","ambiguous","guessed"): (out/(n+".txt")).write_text("\n".join(sorted(set(getattr(cm,n))))+"\n")
    docpaths={str(p):(src,origin) for p,_,(src,origin) in docs}
    T=cm.t
    new={}
    for p,es in cm.edits.items():
        new[p]="\n".join(apply_lines(before[p].split("\n"),es))
    # documents back
    nbs={}
    for p,(src,origin) in docpaths.items():
        if p not in new: continue
        a,b=before[p].split("\n"),new[p].split("\n")
        full=root/src
        if src.endswith(".md"):
            ls=nbs.setdefault(src,full.read_text().split("\n"))
            for o,x,y in zip(origin,a,b):
                if x!=y: assert ls[o]==x,(src,o); ls[o]=y
        else:
            nb=nbs.setdefault(src,json.loads(full.read_text()))
            for (c,i),x,y in zip(origin,a,b):
                if x!=y:
                    cell=nb["cells"][c]; s="".join(cell["source"]).split("\n"); s[i]=y.removeprefix("pass #")
                    cell["source"]=[l+"\n" for l in s[:-1]]+([s[-1]] if s[-1] else [])
    for src,v in nbs.items():
        (root/src).write_text("\n".join(v) if isinstance(v,list) else json.dumps(v,indent=1,ensure_ascii=False)+"\n")
    py={}
    for p in cm.paths.values():
        if p not in docpaths: py[p]=new.get(p,before[p])
    # docstrings, comments, strings of messages
    say("texts")
    for p in py: py[p]=texts.python(cm,p,before[p],py[p])
    for p,t in py.items():
        if t!=before[p]: Path(p).write_text(t)
    texts.planted(cm,root,before,py)
    texts.files(cm,root)
    say("moves"); texts.moves(cm,root)
    out=HERE/"out"; out.mkdir(exist_ok=True)
    for n in ("conflicts","ambiguous","guessed","log"): (out/(n+".txt")).write_text("\n".join(sorted(set(getattr(cm,n))))+"\n")
    rows=[]
    words=set(T.member_names)|set(T.param_names)|{k.rpartition(".")[2] for k in T.symbols}
    for (p,l,c,el,ec,v,fn,scope) in cm.strings:
        w=set(re.findall(r"\w+",v))&words
        if w: rows.append(f"{os.path.relpath(p,root)}:{l}: {sorted(w)}: {v[:110]!r}")
    (out/"strings.txt").write_text("\n".join(rows))
    say("done", {n:len(set(getattr(cm,n))) for n in ("conflicts","ambiguous","guessed")}, len(rows),"strings")
if __name__=="__main__": main(sys.argv[1], HERE/"renames.py")
