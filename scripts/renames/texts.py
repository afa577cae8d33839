"""Comments, docstrings, prose in backticks, dotted names and paths."""
import ast, io, os, re, subprocess, tokenize, json
from collections import defaultdict
from pathlib import Path

def spelled(cm):
    """Old spelling -> new, where the tree has only one meaning for it."""
    if hasattr(cm,"_spelled"): return cm._spelled
    t=cm.t; all_new=defaultdict(set); owners=defaultdict(set)
    for k,v in t.symbols.items(): all_new[k.rpartition(".")[2]].add(v); owners[k.rpartition(".")[2]].add(k)
    for (o,n),v in t.members.items(): all_new[n].add(v)
    for (o,n),v in t.params.items(): all_new[n].add(v)
    others=defaultdict(int)
    for full in list(cm.infos)+list(cm.functions):
        m=full.rpartition(".")[2]
        if not full.startswith(("hmmscope","bench")): continue
        owner=full.rpartition(".")[0]
        if full in t.symbols: continue
        if owner in cm.infos and cm.member(cm.infos[owner],m): continue
        others[m]+=1
    for info in cm.infos.values():
        if not info.fullname.startswith("hmmscope"): continue
        for a in info.names:
            if cm.member(info,a) is None and f"{info.fullname}.{a}" not in t.symbols: others[a]+=1
    out={}
    for w,vs in all_new.items():
        if len(vs)==1 and not others[w]: out[w]=next(iter(vs))
    cm._spelled=out; cm._all_new=all_new
    return out

def distinctive(w):
    return "_" in w.strip("_") or re.search(r"[a-z][A-Z]|[A-Z]{2}",w)

def code_words(cm, code, symtable=None):
    """An expression in backticks with its names replaced."""
    sp=spelled(cm)
    def one(m):
        w=m[0]
        if symtable:
            f=symtable(w)
            if f:
                n=cm.new_symbol(f)
                return n if n and f.rpartition(".")[2]==w else w
        if w not in sp: return w
        i,j=m.start(),m.end()
        if distinctive(w) or w[0].isupper() or code[j:j+1] in "(=" and j<len(code) or code[i-1:i]==".": return sp[w]
        return w
    return re.sub(r"(?<![\w\-/$])[A-Za-z_]\w*(?![\w\-/])",one,code)

def dotted_names(cm, text):
    """hmmscope.a.b.c in any text: modules, and what they define."""
    t=cm.t
    def one(m):
        full=m[0]; parts=full.split("."); cur=parts[0]; out=[parts[0]]
        from_mod=parts[0]
        for p in parts[1:]:
            nxt=cur+"."+p
            if nxt in cm.files: out.append(t.modules.get(nxt,p)); cur=nxt
            else:
                if cur in cm.files: r=cm.resolve(cur,p)
                elif cur in cm.infos:
                    new=cm.member(cm.infos[cur],p); out.append(new or p); cur=nxt; continue
                else: out.append(p); cur=nxt; continue
                n=cm.new_symbol(r)
                out.append(n if n and r.rpartition(".")[2]==p else p); cur=r
        return ".".join(out)
    return re.sub(r"\bhmmscope(?:_papers)?(?:\.[A-Za-z_]\w*)+",one,text)

def paths(cm, text):
    """Paths of modules and tests in any text."""
    if not hasattr(cm,"_paths"):
        rules=[]
        for m,n in cm.t.modules.items():
            old=m.split("."); new=[]
            cur=""
            for i,p in enumerate(old):
                cur=".".join(old[:i+1]); new.append(cm.t.modules.get(cur,p))
            o,w="/".join(old),"/".join(new)
            for strip in (0,1):
                a="/".join(old[strip:]); b="/".join(new[strip:])
                if "/" in a: rules.append((a,re.compile(r"(?<![\w-])"+re.escape(a)+r"(?=\.py\b|/)"),b))
        for a,b in cm.t.ns["PATHS"].items():
            a2,b2=a.removesuffix(".py"),b.removesuffix(".py")
            rules.append((a,re.compile(r"(?<![\w-])"+re.escape(a)+r"(?![\w-])"),b))
            if a.startswith("tests/"): rules.append((a[6:],re.compile(r"(?<![\w/-])"+re.escape(a[6:])+(r"(?=/)" if "." not in a else r"(?![\w-])")),b[6:]))
        for a,b in cm.t.tests.items(): rules.append((a+".py",re.compile(r"(?<![\w-])"+a+r"\.py\b"),b+".py"))
        cm._paths=rules
    for a,r,b in cm._paths:
        if a in text: text=r.sub(b,text)
    return text

TICK=re.compile(r"(``?)([^`\n]+)\1(?!`)")
def ticks(cm, text, symtable=None):
    return TICK.sub(lambda m: m[1]+code_words(cm,m[2],symtable)+m[1], text)

def prose(cm, text, symtable=None):
    text=ticks(cm,text,symtable)
    sp=spelled(cm)
    # distinctive spellings also outside of backticks
    return re.sub(r"(?<![\w\-/.])[A-Za-z_]\w*(?![\w\-/])",lambda m: sp[m[0]] if m[0] in sp and distinctive(m[0]) else m[0],text)

EXACT_KEEP={"corpus","first","time","steps","seen","none","there","says","reading","numbers","matters","laws","columns","starts","num_grains","milestones","telling","blocks","silence"}
EXACT=[("models/base.py","num_tokens"),("processes/process.py","law"),("constructions/induction.py","num_tokens"),("emissions/conjugate.py","strength"),("emissions/expectation.py","floor")]
KEEP_STRINGS=re.compile(r"build\(num_tokens|^[a-z]+(-[a-z]+)*$|sha256|hmmscope-")
def python(cm, path, old, new):
    """Docstrings, comments and messages of a module whose code is renamed already."""
    module=next(m for m,p in cm.paths.items() if p==path)
    tree=cm.files.get(module)
    def symtable(w):
        if tree is None or w not in tree.names: return None
        n=tree.names[w].node
        return getattr(n,"fullname",None)
    t=cm.t
    try: root=ast.parse(new)
    except SyntaxError as e: cm.conflicts.append(f"{path}: {e}"); return new
    lines=new.split("\n"); starts=[0]
    for l in lines: starts.append(starts[-1]+len(l.encode())+1)
    data=new.encode(); edits=[]
    rev={v:k for k,v in t.symbols.items()}
    def visit(node,scope,params):
        for n in ast.iter_child_nodes(node):
            sc,ps=scope,params
            if isinstance(n,(ast.ClassDef,ast.FunctionDef,ast.AsyncFunctionDef)):
                # the old name of the scope
                oldname=n.name
                for k,v in t.symbols.items():
                    if v==n.name and k.rpartition(".")[0]==scope: oldname=k.rpartition(".")[2]
                if oldname==n.name and scope in cm.infos:
                    for a in cm.infos[scope].names:
                        if cm.member(cm.infos[scope],a)==n.name and n.name not in cm.infos[scope].names: oldname=a
                sc=scope+"."+oldname
                if isinstance(n,ast.ClassDef):
                    own={}
                    if sc in cm.infos:
                        for a in cm.infos[sc].names:
                            m=cm.member(cm.infos[sc],a)
                            if m: own[a]=m
                        own|=cm.t.param_owners.get(sc+".__init__",{})
                    ps=own
                else: ps=dict(params)|cm.t.param_owners.get(sc,{}) if cm.t.param_owners.get(sc) else params
                doc(n,sc,ps)
            elif isinstance(n,ast.Constant) and isinstance(n.value,str): message(n,ps)
            visit(n,sc,ps)
    seen=set()
    def span(n): return starts[n.lineno-1]+n.col_offset, starts[n.end_lineno-1]+n.end_col_offset
    def doc(n,sc,ps):
        b=n.body[0] if n.body else None
        if isinstance(b,ast.Expr) and isinstance(b.value,ast.Constant) and isinstance(b.value.value,str):
            s,e=span(b.value); seen.add(s); text=data[s:e].decode()
            out=prose(cm,text,lambda w:(None if w in ps else symtable(w)))
            for o,w in ps.items():
                out=re.sub(rf"^(\s+(?:\w+, )*){o}(?=(?:, \w+)*:)",lambda m:m[1]+w,out,flags=re.M)
                out=TICK.sub(lambda m:m[1]+re.sub(rf"(?<![\w.]){o}(?!\w)",w,m[2])+m[1],out)
            if out!=text: edits.append((s,e,out))
    parents={}
    for q in ast.walk(root):
        for c in ast.iter_child_nodes(q): parents[c]=q
    def exact_ok(n,o):
        q=parents.get(n)
        f=q.func if isinstance(q,ast.Call) else None
        name=f.id if isinstance(f,ast.Name) else f.attr if isinstance(f,ast.Attribute) else ""
        if re.match(r"require|check|_check|unknown_name|numbers_of|laws_of|as_|_as",name) and q.args and o not in ("room","learned"): return True
        rel=os.path.relpath(path,cm.root)
        return any(rel.endswith(a) and o==b for a,b in EXACT)
    SPLIT=re.compile(r"""^([rbfuRBFU]*(?:\"\"\"|\'\'\'|"|\'))?""")
    def message(n,ps):
        s,e=span(n)
        if s in seen: return
        text=data[s:e].decode()
        k=SPLIT.match(text).end(); head,body=text[:k],text[k:]
        tail=""
        if head: q=re.search(r"[\"']+$",head)[0]; body,tail=body[:-len(q)],body[-len(q):]
        new=body
        for o,w in ps.items():
            if body==o and exact_ok(n,o): new=w
            elif re.match(rf"{o}: ",body): new=w+body[len(o):]
        if new==body:
            m=re.match(r"(\^?)(\w+)(?=: )",body)
            if m and m[2] in cm.t.ns["MESSAGES"]: new=m[1]+cm.t.ns["MESSAGES"][m[2]]+body[m.end():]
        if new==body and (" " in body or "(" in body) and not KEEP_STRINGS.search(body):
            sp=spelled(cm)
            new=re.sub(r"(?<![\w\-/.\\])[A-Za-z_]\w*(?![\w\-/])",lambda m: sp[m[0]] if m[0] in sp and (distinctive(m[0]) or m[0][0].isupper() and body[m.end():m.end()+1]=="(") else m[0],body)
            new=re.sub(r"(?<=\.)[A-Za-z_]\w*",lambda m: sp[m[0]] if m[0] in sp and distinctive(m[0]) else m[0],new)
        if new!=body:
            cm.log.append(f"{os.path.relpath(path,cm.root)}:{n.lineno}: {body[:70]!r} -> {new[:70]!r}"); edits.append((s,e,head+new+tail)); seen.add(s)
    doc(root,module,{})
    visit(root,module,{})
    for s,e,out in sorted(edits,reverse=True): data=data[:s]+out.encode()+data[e:]
    text=data.decode()
    # comments
    try: toks=list(tokenize.generate_tokens(io.StringIO(text).readline))
    except Exception as e: cm.conflicts.append(f"{path}: tokens {e}"); return text
    ls=text.split("\n")
    for k in toks:
        if k.type==tokenize.COMMENT:
            l,c=k.start; out=prose(cm,k.string,symtable)
            if out!=k.string: ls[l-1]=ls[l-1][:c]+out
    text="\n".join(ls)
    text=dotted_names(cm,text)
    return paths(cm,text)

def planted(cm, root, before, after):
    """Snippets of source in tests that plant faults: the same places of the new source."""
    import difflib
    src={os.path.relpath(p,root):(before[p],Path(p).read_text()) for p in before if "/src/" in p or "/tests/" in p}
    whole=[(a,b) for p,(a,b) in src.items() if p.startswith("src/") and a!=b]
    maps={}
    def linemap(a,b):
        k=id(a)
        if k not in maps: maps[k]=(a.split("\n"),b.split("\n"))
        return maps[k]
    for p in list(before):
        rel=os.path.relpath(p,root)
        if not rel.startswith("tests/") or not re.search(r"fault|mutant|surviv|laboratory|attacks|plant",rel): continue
        text=Path(p).read_text()
        try: tree=ast.parse(text)
        except SyntaxError: continue
        lines=text.split("\n"); st=[0]
        for l in lines: st.append(st[-1]+len(l.encode())+1)
        data=text.encode(); edits=[]
        todo=[n for n in ast.walk(tree) if isinstance(n,(ast.Tuple,ast.Call,ast.List))]
        done=set()
        for n in todo:
            items=n.elts if isinstance(n,(ast.Tuple,ast.List)) else n.args
            consts=[c for c in items if isinstance(c,ast.Constant) and isinstance(c.value,str)]
            sub={}
            for c in consts:
                v=c.value
                if len(v)<6 or c.col_offset in done: continue
                for a,b in whole:
                    i=a.find(v)
                    if i<0: continue
                    A,B=linemap(a,b)
                    if len(A)!=len(B): break
                    l0=a.count("\n",0,i); l1=a.count("\n",0,i+len(v)-(v.endswith("\n")))
                    oldl="\n".join(A[l0:l1+1]); newl="\n".join(B[l0:l1+1])
                    if oldl==newl: continue
                    to,tn=re.findall(r"\w+|\W",oldl),re.findall(r"\w+|\W",newl)
                    if len(to)!=len(tn): break
                    for x,y in zip(to,tn):
                        if x!=y and re.search(r"\w",x): sub[x]=y
                    break
            if sub:
                for c in consts:
                    s,e=st[c.lineno-1]+c.col_offset,st[c.end_lineno-1]+c.end_col_offset
                    if (s,e) in done: continue
                    done.add((s,e))
                    t=data[s:e].decode(); o=re.sub(r"\b[A-Za-z_]\w*\b",lambda m:sub.get(m[0],m[0]),t)
                    if o!=t: edits.append((s,e,o))
        for s,e,o in sorted(edits,reverse=True): data=data[:s]+o.encode()+data[e:]
        if edits: Path(p).write_text(data.decode()); cm.log.append(f"{rel}: {len(edits)} planted snippets")

CLI={"ask":{"--screen":"--ngram-baselines","--steps":"--observability","--time":"--horizon","--blocks":"--block-entropies"},
 "train":{"--begin":"--warm-start"},"run":{"--from":"--reuse","--trained":"--pool","--first":"--only-first","--silence":"--heartbeat-timeout"},
 "sweep":{"--silence":"--heartbeat-timeout","--instances":"--vary-process"},"fit":{"--check":"--goodness-of-fit"},"claims":{"--examine":"--sensitivity"},
 "benchmark":{"--board":"--leaderboard","--keep":"--copy-card"},"analyse":{"--over-training":"--over-checkpoints"}}
def command_lines(text):
    def one(m):
        verb=m[2]; rest=m[3]
        for o,w in CLI.get(verb,{}).items(): rest=re.sub(re.escape(o)+r"(?![\w-])",w,rest)
        return m[1]+("infer" if verb=="ask" else verb)+rest
    return re.sub(r"(hmmscope(?:\"|\x27)? )(ask|train|run|sweep|fit|claims|benchmark|analyse)\b((?:[^\n`]|\\\n)*)",one,text)

SKIP=("results/","protocols/","constraints/","CHANGELOG","LICENSE","tests/experiments/measured/")
def files(cm, root):
    from codemod import git_files
    for f in git_files(root):
        if f.startswith(SKIP) or not f.endswith((".md",".toml",".yml",".yaml",".sh",".cff",".py",".ipynb",".j2",".js",".txt",".tex","Makefile","run",".json")): continue
        p=root/f
        if not p.exists() or (f.endswith(".json") and f!="tests/defaults.json"): continue
        try: text=p.read_text()
        except UnicodeDecodeError: continue
        out=text
        if not f.endswith(".py"):
            out=paths(cm,dotted_names(cm,out))
            if f.endswith(".md"): out=markdown(cm,out)
        out=command_lines(out)
        if out!=text: p.write_text(out)

def markdown(cm, text):
    """Prose and printed output of a page; its Python is done."""
    if "build(num_tokens" in text:
        return markdown(cm,text.replace("num_tokens","num__tokens")).replace("num__tokens","num_tokens")
    parts=re.split(r"(^```.*?^```\n?)",text,flags=re.M|re.S)
    sp=spelled(cm)
    for i,p in enumerate(parts):
        if p.startswith("```python"): continue
        if p.startswith("```"):
            parts[i]=re.sub(r"(?<![\w\-/.])[A-Za-z_]\w*(?![\w\-/])",lambda m: sp[m[0]] if m[0] in sp and distinctive(m[0]) else m[0],p)
        else: parts[i]=ticks(cm,p)
    return "".join(parts)

def moves(cm, root):
    def git(*a): subprocess.run(["git",*a],cwd=root,check=True,capture_output=True)
    subprocess.run(["git","add","-A"],cwd=root,check=True)
    t=cm.t
    for m in sorted(t.modules,key=lambda m:(-m.count("."),m)):
        old=root/"src"/m.replace(".","/")
        new=old.parent/t.modules[m]
        for o,n in ((old.with_name(old.name+".py"),new.with_name(new.name+".py")),(old,new)):
            if o.is_file() or (o.is_dir() and (o/"__init__.py").exists()): git("mv",str(o),str(n)); break
        else: cm.conflicts.append(f"no module {m}")
    for a,b in t.tests.items():
        hit=[p for p in (*root.glob("tests/**/"+a+".py"),*root.glob("scripts/"+a+".py"))]
        for p in hit: git("mv",str(p),str(p.with_name(b+".py")))
    for a,b in t.ns["PATHS"].items():
        if (root/a).exists():
            (root/b).parent.mkdir(exist_ok=True,parents=True); git("mv",a,b)
        else: cm.conflicts.append(f"no path {a}")
