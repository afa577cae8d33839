"""Apply renames.py to a checkout:  venv/bin/python codemod.py ROOT [--dry]

Mypy tells the meaning of a name (types of all receivers, declarations of all names); positions from `ast`.
"""
import ast, io, json, os, pickle, re, subprocess, sys, time, tokenize
from collections import defaultdict
from pathlib import Path
from mypy import nodes as mn, types as mt
from mypy.types import get_proper_type
import semantic

HERE = Path(__file__).parent
T0 = time.time()
def say(*x): print(f"[{time.time()-T0:5.0f}s]", *x, file=sys.stderr, flush=True)

CHILDREN = {
 "MypyFile":["defs"],"Block":["body"],"ExpressionStmt":["expr"],"AssignmentStmt":["lvalues","rvalue"],
 "OperatorAssignmentStmt":["lvalue","rvalue"],"WhileStmt":["expr","body","else_body"],"ForStmt":["index","expr","body","else_body"],
 "ReturnStmt":["expr"],"AssertStmt":["expr","msg"],"DelStmt":["expr"],"RaiseStmt":["expr","from_expr"],
 "IfStmt":["expr","body","else_body"],"TryStmt":["body","types","vars","handlers","else_body","finally_body"],
 "WithStmt":["expr","target","body"],"MatchStmt":["subject","patterns","guards","bodies"],
 "ClassPattern":["class_ref","positionals","keyword_values"],"AsPattern":["pattern","name"],"OrPattern":["patterns"],"ValuePattern":["expr"],
 "SequencePattern":["patterns"],"MappingPattern":["keys","values","rest"],"StarredPattern":["capture"],
 "FuncDef":["arguments","body"],"Argument":["initializer"],"Decorator":["func","decorators"],"OverloadedFuncDef":["items"],
 "ClassDef":["defs","base_type_exprs","removed_base_type_exprs","decorators","keywords"],
 "MemberExpr":["expr"],"CallExpr":["callee","args"],"IndexExpr":["base","index"],"OpExpr":["left","right"],"ComparisonExpr":["operands"],
 "UnaryExpr":["expr"],"TupleExpr":["items"],"ListExpr":["items"],"SetExpr":["items"],"DictExpr":["items"],"SliceExpr":["begin_index","end_index","stride"],
 "ConditionalExpr":["cond","if_expr","else_expr"],"LambdaExpr":["arguments","body"],"GeneratorExpr":["left_expr","sequences","condlists","indices"],
 "ListComprehension":["generator"],"SetComprehension":["generator"],"DictionaryComprehension":["key","value","indices","sequences","condlists"],
 "StarExpr":["expr"],"YieldExpr":["expr"],"YieldFromExpr":["expr"],"AwaitExpr":["expr"],"AssignmentExpr":["target","value"],"CastExpr":["expr"],
 "NameExpr":[],"SuperExpr":["call"],"AssertTypeExpr":["expr"],"TypeApplication":["expr"],
}
def walk(tree):
    stack=[tree]
    while stack:
        n=stack.pop()
        if n is None: continue
        if isinstance(n,(list,tuple)): stack.extend(n); continue
        if isinstance(n,dict): stack.extend(n.values()); continue
        c=type(n).__name__
        at=CHILDREN.get(c)
        if at is None: continue
        yield c,n
        for a in at:
            v=getattr(n,a,None)
            if v is not None: stack.append(v)

class Table:
    """The renames, by what they own."""
    def __init__(self, path):
        ns={}; exec(compile(Path(path).read_text(),str(path),"exec"),ns)
        self.modules=ns["MODULES"]; self.tests=ns["TEST_MODULES"]; self.symbols=ns["SYMBOLS"]; self.members={}
        self.params={}; self.ns=ns
        for k,v in ns["MEMBERS"].items():
            o,_,n=k.rpartition("."); self.members[o,n]=v
        for k,v in ns["PARAMS"].items():
            o,_,n=k.rpartition("."); self.params[o,n]=v
        self.member_names=defaultdict(set)
        for (o,n),v in self.members.items(): self.member_names[n].add(v)
        self.param_names=defaultdict(set)
        for (o,n),v in self.params.items(): self.param_names[n].add(v)
        self.param_owners=defaultdict(dict)
        for (o,n),v in self.params.items(): self.param_owners[o][n]=v
        self.member_owners=defaultdict(dict)
        for (o,n),v in self.members.items(): self.member_owners[o][n]=v

def new_module(full, modules):
    parts=full.split("."); out=[]
    cur=""
    for i,p in enumerate(parts):
        cur=".".join(parts[:i+1])
        out.append(modules.get(cur,p))
    return ".".join(out)

class Codemod:
    def __init__(self, root, table, extra, analysed=None):
        self.root=Path(root).resolve(); self.t=Table(table)
        self.res,self.paths=analysed or semantic.analyse(self.root,[(p,m) for p,m,_ in extra])
        say("analysed")
        self.files=self.res.files
        self.edits=defaultdict(dict)   # path -> {(line,col): (old,new)}
        self.log=[]; self.ambiguous=[]; self.strings=[]; self.conflicts=[]
        self.owners()
    # -- the declarations of the tree
    def owners(self):
        self.infos={}          # class fullname -> TypeInfo
        self.functions={}      # function fullname -> FuncDef
        self.by_name=defaultdict(set)  # last name of a function -> fullnames
        self.attr_owners=defaultdict(set)
        for m,p in self.paths.items():
            f=self.files.get(m)
            if f is None: continue
            def take(names, pre):
                for k,s in list(names.items()):
                    n=s.node
                    if n is None or not hasattr(n,"fullname"): continue
                    if isinstance(n,mn.Decorator): n2=n.func
                    else: n2=n
                    if isinstance(n,mn.TypeInfo) and n.fullname==pre+"."+k and n.fullname not in self.infos:
                        self.infos[n.fullname]=n
                        take(n.names,n.fullname)
                        for a in n.names: self.attr_owners[a].add(n.fullname)
                    elif isinstance(n2,mn.FuncDef) and n2.fullname==pre+"."+k:
                        self.functions[n2.fullname]=n2; self.by_name[k].add(n2.fullname)
            take(f.names,m)
        for pat,old,new in self.t.ns["PARAM_PATTERNS"]:
            r=re.compile(pat)
            for full,f in self.functions.items():
                if r.fullmatch(full) and full+"."+old not in self.t.ns["PARAM_SKIP"] and (full,old) not in self.t.params and any(a.variable.name==old for a in f.arguments):
                    self.t.params[full,old]=new; self.t.param_names[old].add(new); self.t.param_owners[full][old]=new
        self.param_vars={}
        for (o,a),new in self.t.params.items():
            fs=[]
            if o in self.functions: fs=[self.functions[o]]
            # overriding methods share the rename
            c,_,meth=o.rpartition(".")
            if c in self.infos:
                for full,info in self.infos.items():
                    if any(b.fullname==c for b in info.mro) and meth in info.names:
                        k=full+"."+meth
                        if k in self.functions: fs.append(self.functions[k])
            if not fs: self.conflicts.append(f"no function {o} for parameter {a}")
            hit=False
            for f in fs:
                for arg in f.arguments:
                    if arg.variable.name==a:
                        self.param_vars[id(arg.variable)]=(arg.variable,new); hit=True
                        self.t.param_owners[f.fullname].setdefault(a,new)
            if fs and not hit: self.conflicts.append(f"{o} has no parameter {a}")
        for s in self.t.symbols:
            mod,_,n=s.rpartition(".")
            if mod in self.infos: ok=n in self.infos[mod].names
            else: ok=mod in self.files and n in self.files[mod].names
            if not ok: self.conflicts.append(f"no symbol {s}")
            elif mod in self.files and self.t.symbols[s] in self.files[mod].names: self.conflicts.append(f"{mod} has already {self.t.symbols[s]} (for {s})")
        for (o,n) in self.t.members:
            if o not in self.infos: self.conflicts.append(f"no class {o} for member {n}")
            elif n not in self.infos[o].names: self.conflicts.append(f"{o} has no member {n}")
        for (o,n),new in self.t.members.items():
            for full,info in self.infos.items():
                if any(b.fullname==o for b in info.mro) and new in info.names and (full,new) not in self.t.members: self.conflicts.append(f"{full} has already {new} (for {o}.{n})")
    # -- meaning
    def new_symbol(self, full):
        if full in self.t.symbols: return self.t.symbols[full]
        if full in self.t.modules or full in self.t.tests: return (self.t.modules|self.t.tests)[full]
        return None
    def member(self, info, name):
        for b in info.mro:
            if (b.fullname,name) in self.t.members: return self.t.members[b.fullname,name]
        return None
    def infos_of(self, typ, depth=0):
        """Infos that a receiver may be; None: not known."""
        if typ is None or depth>6: return None
        t=get_proper_type(typ)
        if isinstance(t,mt.AnyType): return None
        if isinstance(t,mt.Instance): return [t.type]
        if isinstance(t,mt.UnionType):
            out=[]
            for i in t.items:
                r=self.infos_of(i,depth+1)
                if r is None:
                    continue
                out+=r
            return out or None
        if isinstance(t,mt.TypeType): return self.infos_of(t.item,depth+1)
        if isinstance(t,mt.CallableType):
            if t.is_type_obj(): return [t.type_object()]
            return [t.fallback.type]
        if isinstance(t,mt.Overloaded):
            return self.infos_of(t.items[0],depth+1)
        if isinstance(t,mt.TupleType): return [t.partial_fallback.type]
        if isinstance(t,mt.TypeVarType): return self.infos_of(t.upper_bound,depth+1)
        if isinstance(t,mt.LiteralType): return [t.fallback.type]
        if isinstance(t,(mt.NoneType,mt.UninhabitedType)): return []
        return None
    def attr_new(self, typ, name, where):
        infos=self.infos_of(typ)
        if infos:
            found={self.member(i,name) for i in infos}-{None}
            if len(found)==1: return found.pop()
            if len(found)>1: self.ambiguous.append(f"{where}: .{name}: {found}"); return None
            if not all(i.fullname in ("builtins.object","builtins.function") for i in infos):
                # known class without that member renamed
                if any(i.get(name) is not None for i in infos): return None
                if any(i.fallback_to_any for i in infos): return self.by_spelling(name, where)
                if any(i.is_protocol for i in infos): return None
                return self.by_spelling(name, where) if name in self.t.member_names else None
            return None
        if infos==[]: return self.by_spelling(name, where)
        return self.by_spelling(name, where)
    FOREIGN=set(dir(list))|set(dir(dict))|set(dir(str))|set(dir(set))|set(dir(tuple))|set(dir(Path))|{"means","weights","shares","columns","text","reading","first","left","alone"}
    def by_spelling(self, name, where):
        news=self.t.member_names.get(name)
        if not news: return None
        if self.ns_force.get(name): return self.ns_force[name]
        for pat,at,new in self.t.ns["FORCE"]:
            if at==name and re.search(pat,where): 
                if new: self.guessed.append(f"{where}: .{name} -> {new} (forced)")
                return new
        others=set()
        for o in self.attr_owners.get(name,()):
            if self.member(self.infos[o],name) is None and not self.infos[o].module_name.startswith(("test_","x_")): others.add(o)
        if len(news)==1 and not others and name not in self.FOREIGN:
            self.guessed.append(f"{where}: .{name} -> {next(iter(news))}")
            return next(iter(news))
        self.ambiguous.append(f"{where}: .{name} of unknown type: {sorted(news)}; others {sorted(others)[:4]}")
        return None
    # -- one file
    def edit(self, path, line, col, old, new):
        if old==new: return
        src=self.src[path][line-1]
        b=src.encode(); o=old.encode()
        if b[col:col+len(o)]!=o:
            self.conflicts.append(f"{path}:{line}:{col}: expected {old!r}, found {b[col:col+len(o)+10]!r}"); return
        self.edits[path][line,col]=(old,new)
    def run(self):
        self.src={}; self.guessed=[]; self.ns_force=self.t.ns.get("BY_SPELLING",{})
        for m,p in self.paths.items():
            if m not in self.files: self.conflicts.append(f"not analysed: {m}"); continue
            self.file(m,p)
        say("files done:", sum(map(len,self.edits.values())),"edits")
    def file(self, module, path):
        tree=self.files[module]
        text=Path(path).read_text(); self.src[path]=text.split("\n")
        try: root=ast.parse(text)
        except SyntaxError as e: self.conflicts.append(f"{path}: {e}"); return
        names={}; members={}; calls={}
        for c,n in walk(tree):
            if c=="NameExpr": names[n.line,n.column]=n   # several for desugared: the last wins
            elif c=="MemberExpr": members[n.end_line,n.end_column,n.name]=n
            elif c=="CallExpr": calls[n.line,n.column,n.end_line,n.end_column]=n
        # names that are imported in functions, for annotations
        local={}
        for n in ast.walk(root):
            if isinstance(n,ast.ImportFrom) and n.module and n.level==0:
                for a in n.names: local[a.asname or a.name]=self.resolve(n.module,a.name)
        V=Visitor(self,module,path,tree,names,members,calls,local)
        V.root=root; V.visit(root)
    def resolve(self, module, name):
        """The full name that module.name stands for."""
        full=f"{module}.{name}"
        if full in self.files: return full
        f=self.files.get(module)
        if f is not None:
            s=f.names.get(name)
            if s is not None and s.node is not None and getattr(s.node,"fullname",None): return s.node.fullname
        return full

class Visitor(ast.NodeVisitor):
    def __init__(s,cm,module,path,tree,names,members,calls,local):
        s.cm,s.module,s.path,s.tree,s.names,s.members,s.calls,s.local=cm,module,path,tree,names,members,calls,local
        s.tops=[]; s.root=None; s.stack=[]; s.doc=set(); s.annotation=0; s.func=[]
    def full(s): return ".".join([s.module,*s.stack])
    def where(s,n): return f"{os.path.relpath(s.path,s.cm.root)}:{n.lineno}"
    # imports
    def visit_Import(s,n):
        for a in n.names:
            parts=a.name.split("."); col=a.col_offset
            new=new_module(a.name, s.cm.t.modules|s.cm.t.tests)
            if new!=a.name: s.cm.edit(s.path,a.lineno,col,a.name,new)
    def visit_ImportFrom(s,n):
        if n.level or not n.module: return
        new=new_module(n.module, s.cm.t.modules|s.cm.t.tests)
        if new!=n.module:
            line=s.cm.src[s.path][n.lineno-1].encode()
            col=line.index(b"from ",n.col_offset)+5
            s.cm.edit(s.path,n.lineno,col,n.module,new)
        for a in n.names:
            full=s.cm.resolve(n.module,a.name)
            new=s.cm.new_symbol(full)
            if new and full.rpartition(".")[2]==a.name:
                s.cm.edit(s.path,a.lineno,a.col_offset,a.name,new)
                if a.asname==a.name:
                    line=s.cm.src[s.path][a.lineno-1].encode()
                    s.cm.edit(s.path,a.lineno,line.index(b" as ",a.col_offset)+4,a.asname,new)
    def visit_ClassDef(s,n):
        full=s.full()+"."+n.name
        new=s.cm.t.symbols.get(full)
        if new:
            line=s.cm.src[s.path][n.lineno-1].encode(); s.cm.edit(s.path,n.lineno,line.index(b"class ",n.col_offset)+6,n.name,new)
        for d in n.decorator_list: s.visit(d)
        for b in n.bases: s.visit(b)
        for k in n.keywords: s.visit(k.value)
        s.stack.append(n.name); 
        s.docstring(n)
        for b in n.body: s.visit(b)
        s.stack.pop()
    def visit_FunctionDef(s,n):
        full=s.full()+"."+n.name
        new=s.cm.t.symbols.get(full)
        owner=s.full()
        if not new and owner in s.cm.infos: new=s.cm.member(s.cm.infos[owner],n.name)
        if new:
            line=s.cm.src[s.path][n.lineno-1].encode(); s.cm.edit(s.path,n.lineno,line.index(b"def ",n.col_offset)+4,n.name,new)
        for d in n.decorator_list: s.visit(d)
        ps=s.cm.t.param_owners.get(full,{})
        a=n.args
        allargs=a.posonlyargs+a.args+a.kwonlyargs+([a.vararg] if a.vararg else [])+([a.kwarg] if a.kwarg else [])
        for x in allargs:
            if x.arg in ps: s.cm.edit(s.path,x.lineno,x.col_offset,x.arg,ps[x.arg])
            if x.annotation: s.annotate(x.annotation)
        for d in a.defaults+[d for d in a.kw_defaults if d]: s.visit(d)
        if n.returns: s.annotate(n.returns)
        if ps:
            used={y.id for y in ast.walk(n) if isinstance(y,ast.Name)}|{x.arg for x in allargs}
            for o,w in ps.items():
                if w in used: s.cm.conflicts.append(f"{s.where(n)}: {n.name}: parameter {o} -> {w}: {w} is used there")
        top=not s.tops
        if top: s.tops.append({"node":n})
        s.stack.append(n.name); s.func.append(full); s.docstring(n)
        for b in n.body: s.visit(b)
        s.func.pop(); s.stack.pop()
        if top: s.tops.pop()
    visit_AsyncFunctionDef=visit_FunctionDef
    def local_new(s,name,node):
        new=s.cm.t.ns["LOCALS"].get(name)
        if not new: return None
        if s.module.startswith("doc_"):
            if not hasattr(s,"_docnames"): s._docnames={y.id for y in ast.walk(s.root) if isinstance(y,ast.Name)}
            return None if new in s._docnames else new
        if not s.tops: return None
        ok=s.tops[-1].setdefault(name,None)
        if ok is None:
            top=s.tops[-1]["node"]; args={x.arg for x in ast.walk(top) if isinstance(x,ast.arg)}
            used={y.id for y in ast.walk(top) if isinstance(y,ast.Name)}|args
            stored={y.id for y in ast.walk(top) if isinstance(y,ast.Name) and isinstance(y.ctx,ast.Store)}
            hard=any(isinstance(y,(ast.Global,ast.Nonlocal)) and name in y.names for y in ast.walk(top))
            ok=s.tops[-1][name]=bool(name in stored and name not in args and new not in used and not hard)
        return new if ok else None
    def docstring(s,n):
        b=n.body[0] if n.body else None
        if isinstance(b,ast.Expr) and isinstance(b.value,ast.Constant) and isinstance(b.value.value,str): s.doc.add(id(b.value))
    def visit_Module(s,n):
        s.docstring(n); s.generic_visit(n)
    def annotate(s,n):
        s.annotation+=1; s.visit(n); s.annotation-=1
    def visit_Assign(s,n):
        if any(isinstance(t,ast.Name) and t.id in ("__all__","__slots__") for t in n.targets) and isinstance(n.value,(ast.List,ast.Tuple)):
            for c in n.value.elts:
                if isinstance(c,ast.Constant) and isinstance(c.value,str):
                    f=s.by_table(c.value); new=s.cm.new_symbol(f) if f and f.rpartition(".")[2]==c.value else None
                    if not f and s.full() in s.cm.infos: new=s.cm.member(s.cm.infos[s.full()],c.value)
                    if new: s.cm.edit(s.path,c.lineno,c.col_offset+1,c.value,new)
                    s.doc.add(id(c))
        s.generic_visit(n)
    def visit_AnnAssign(s,n):
        s.visit(n.target); s.annotate(n.annotation)
        if n.value: s.visit(n.value)
    # references
    def by_table(s,name):
        """The full name of a global name here."""
        for k in range(len(s.stack),0,-1):
            i=s.cm.infos.get(".".join([s.module,*s.stack[:k]]))
            if i is not None and name in i.names and isinstance(i.names[name].node,mn.TypeInfo): return i.names[name].node.fullname
        if name in s.tree.names:
            node=s.tree.names[name].node
            if node is not None and getattr(node,"fullname",None): return node.fullname
        return s.local.get(name)
    def visit_Name(s,n):
        e=s.names.get((n.lineno,n.col_offset))
        new=None
        if e is not None and e.name==n.id:
            node=e.node
            if node is not None:
                if id(node) in s.cm.param_vars: new=s.cm.param_vars[id(node)][1]
                elif isinstance(node,mn.MypyFile):
                    f=node.fullname
                    if f.rpartition(".")[2]==n.id: new=s.cm.new_symbol(f)
                else:
                    f=getattr(node,"fullname",None) or ""
                    if isinstance(node,mn.Var) and (f==n.id or f==f"{s.module}.{n.id}" and s.module.startswith("doc_")): new=s.local_new(n.id,node)
                    elif "." in f and f.rpartition(".")[2]==n.id:
                        new=s.cm.new_symbol(f)
                        if new is None:
                            o,_,a=f.rpartition(".")
                            if o in s.cm.infos: new=s.cm.member(s.cm.infos[o],a)
            elif s.annotation or True:
                f=s.by_table(n.id)
                if f and f.rpartition(".")[2]==n.id: new=s.cm.new_symbol(f)
        else:
            f=s.by_table(n.id)
            if f and f.rpartition(".")[2]==n.id and not s.shadowed(n.id): new=s.cm.new_symbol(f)
        if new: s.cm.edit(s.path,n.lineno,n.col_offset,n.id,new)
    def shadowed(s,name): return False
    def visit_Attribute(s,n):
        s.visit(n.value)
        line,end=n.end_lineno,n.end_col_offset
        new=None
        e=s.members.get((line,end,n.attr))
        if isinstance(n.value,ast.Call) and isinstance(n.value.func,ast.Name) and n.value.func.id=="super":
            for k in range(len(s.stack),0,-1):
                o=".".join([s.module,*s.stack[:k]])
                if o in s.cm.infos: new=s.cm.member(s.cm.infos[o],n.attr); break
        elif e is not None:
            node=e.node
            full=e.fullname if node is not None else None
            if node is not None and isinstance(node,mn.MypyFile): new=s.cm.new_symbol(node.fullname)
            elif node is not None and full and full in s.cm.t.symbols: new=s.cm.t.symbols[full]
            else:
                base=e.expr
                t=s.cm.res.types.get(base)
                if isinstance(base,mn.RefExpr) and isinstance(base.node,mn.MypyFile):
                    f=s.cm.resolve(base.node.fullname,n.attr); new=s.cm.new_symbol(f)
                elif isinstance(base,mn.RefExpr) and isinstance(base.node,mn.TypeInfo): new=s.cm.member(base.node,n.attr) or s.cm.t.symbols.get(f"{base.node.fullname}.{n.attr}")
                elif n.attr in s.cm.t.member_names: new=s.cm.attr_new(t,n.attr,s.where(n))
        else:
            # annotations, unreachable code: resolve dotted modules
            d=dotted(n)
            if d:
                first,*rest=d.split(".")
                f=s.by_table(first)
                if f:
                    full=f
                    for r in rest: full=s.cm.resolve(full,r)
                    new=s.cm.new_symbol(full) if full.rpartition(".")[2]==n.attr else None
                    if new is None and f.count(".")>=0 and n.attr in s.cm.t.member_names and f not in s.cm.files: new=s.cm.by_spelling(n.attr,s.where(n))
                elif n.attr in s.cm.t.member_names: new=s.cm.by_spelling(n.attr,s.where(n))
            elif n.attr in s.cm.t.member_names: new=s.cm.by_spelling(n.attr,s.where(n))
        if new: s.cm.edit(s.path,line,end-len(n.attr.encode()),n.attr,new)
    def callee(s,e,n):
        """('class', info) or ('func', fullname) of a call."""
        if e is None: return None
        t=s.cm.res.types.get(e.callee)
        c=e.callee
        if isinstance(c,mn.RefExpr) and isinstance(c.node,mn.TypeInfo): return [("class",c.node)]
        out=[]
        p=get_proper_type(t) if t is not None else None
        for i in (p.items if isinstance(p,(mt.Overloaded,mt.UnionType)) else [p]):
            i=get_proper_type(i) if i is not None else None
            if isinstance(i,mt.CallableType):
                if i.is_type_obj(): out.append(("class",i.type_object()))
                elif i.definition is not None: out.append(("func",i.definition.fullname))
            elif isinstance(i,mt.TypeType):
                q=get_proper_type(i.item)
                if isinstance(q,mt.Instance): out.append(("class",q.type))
            elif isinstance(i,mt.Instance):
                m=i.type.get("__call__")
                if m and m.node is not None: out.append(("func",m.node.fullname))
        if not out and isinstance(c,mn.RefExpr) and c.node is not None and c.fullname: out.append(("func",c.fullname))
        if not out and isinstance(c,mn.MemberExpr):
            infos=s.cm.infos_of(s.cm.res.types.get(c.expr)) or []
            for i in infos:
                m=i.get(c.name)
                if m and m.node is not None: out.append(("func",m.node.fullname))
        return out or None
    def keyword_new(s,target,kw):
        kind,x=target
        if kind=="class":
            new=s.cm.member(x,kw)
            for b in x.mro:
                if "__init__" in b.names and not b.names["__init__"].plugin_generated and (b.fullname+".__init__") in s.cm.functions:
                    return s.keyword_new(("func",b.fullname+".__init__"),kw)
                if "__new__" in b.names and (b.fullname+".__new__") in s.cm.functions:
                    ps=s.cm.t.param_owners.get(b.fullname+".__new__",{})
                    if kw in ps: return ps[kw]
                if b.fullname+"."+"__call__"==0: pass
            return new
        new=s.cm.t.param_owners.get(x,{}).get(kw)
        if new is None and kw in s.cm.t.ns["FORWARD"] and x in s.cm.functions:
            f=s.cm.functions[x]
            if not any(a.variable.name==kw for a in f.arguments) and any(a.kind==mn.ARG_STAR2 for a in f.arguments):
                new=s.cm.t.ns["FORWARD"][kw]; s.cm.guessed.append(f"{s.module}: {x}({kw}=) -> {new} (forwarded)")
        return new
    def visit_Call(s,n):
        e=s.calls.get((n.lineno,n.col_offset,n.end_lineno,n.end_col_offset))
        s.visit(n.func)
        for a in n.args: s.visit(a)
        name=n.func.id if isinstance(n.func,ast.Name) else n.func.attr if isinstance(n.func,ast.Attribute) else ""
        interesting=[k for k in n.keywords if k.arg and (k.arg in s.cm.t.param_names or k.arg in s.cm.t.member_names or k.arg in s.cm.t.ns["FORWARD"])]
        targets=None
        if interesting:
            targets=s.callee(e,n)
            if name in ("partial","partialmethod") and e is not None and e.args:
                targets=s.of_arg(e.args[0])
            if name in ("replace","_replace","copy","with_options"):
                base=None
                if name=="replace" and e is not None and e.args: base=s.cm.res.types.get(e.args[0])
                if isinstance(n.func,ast.Attribute) and isinstance(e.callee if e else None,mn.MemberExpr) and name=="_replace": base=s.cm.res.types.get(e.callee.expr)
                if base is not None:
                    infos=s.cm.infos_of(base)
                    if infos: targets=[("fields",i) for i in infos]
        for k in n.keywords:
            if k in interesting:
                new=None
                if targets:
                    news=set()
                    for kind,x in targets:
                        news.add(s.cm.member(x,k.arg) if kind=="fields" else s.keyword_new((kind,x),k.arg))
                    news-= {None}
                    if len(news)==1: new=news.pop()
                    elif news: s.cm.ambiguous.append(f"{s.where(n)}: {name}({k.arg}=): {news}")
                    elif all(self_any(x) for x in targets): new=s.kw_by_name(n,name,k.arg)
                else: new=s.kw_by_name(n,name,k.arg)
                if new: s.cm.edit(s.path,k.lineno,k.col_offset,k.arg,new)
            s.visit(k.value)
        # attributes named by strings
        if name in ("setattr","getattr","hasattr","delattr","attrgetter","object") and len(n.args)>=1:
            i=0 if name=="attrgetter" else 1
            if len(n.args)>i and isinstance(n.args[i],ast.Constant) and isinstance(n.args[i].value,str):
                at=n.args[i].value; new=None
                if name=="attrgetter":
                    new=s.cm.by_spelling(at,s.where(n)) if at in s.cm.t.member_names else None
                elif e is not None and e.args:
                    b=e.args[0]
                    if isinstance(b,mn.RefExpr) and isinstance(b.node,mn.MypyFile): new=s.cm.new_symbol(s.cm.resolve(b.node.fullname,at))
                    elif isinstance(b,mn.RefExpr) and isinstance(b.node,mn.TypeInfo): new=s.cm.member(b.node,at)
                    elif at in s.cm.t.member_names: new=s.cm.attr_new(s.cm.res.types.get(b),at,s.where(n))
                if new:
                    c=n.args[i]; s.cm.edit(s.path,c.lineno,c.col_offset+1,at,new); s.doc.add(id(c))
    def of_arg(s,x):
        if isinstance(x,mn.RefExpr) and isinstance(x.node,mn.TypeInfo): return [("class",x.node)]
        t=get_proper_type(s.cm.res.types.get(x)) if s.cm.res.types.get(x) is not None else None
        if isinstance(t,mt.CallableType):
            if t.is_type_obj(): return [("class",t.type_object())]
            if t.definition is not None: return [("func",t.definition.fullname)]
        if isinstance(x,mn.RefExpr) and x.fullname: return [("func",x.fullname)]
        return None
    def kw_by_name(s,n,name,kw):
        cands=set(); known=False
        for pat,k,new in s.cm.t.ns["FORCE_KW"]:
            if k==kw and re.search(pat,s.where(n)): return new
        for f in s.cm.by_name.get(name,()):
            known=True; cands.add(s.cm.t.param_owners.get(f,{}).get(kw))
        for full,info in s.cm.infos.items():
            if info.name==name and not info.module_name.startswith("test_"):
                known=True; cands.add(s.keyword_new(("class",info),kw))
        if known:
            if len(cands)==1: return cands.pop()
            if cands-{None}: s.cm.ambiguous.append(f"{s.where(n)}: {name}({kw}=) by name: {cands}")
            return None
        s.cm.ambiguous.append(f"{s.where(n)}: {name}({kw}=): unknown callee; {sorted(s.cm.t.param_names.get(kw,set())|s.cm.t.member_names.get(kw,set()))}")
        return None
    def visit_MatchClass(s,n):
        s.visit(n.cls)
        for p in n.patterns+n.kwd_patterns: s.visit(p)
        for k in n.kwd_attrs:
            if k in s.cm.t.member_names: s.cm.ambiguous.append(f"{s.where(n)}: match {k}=")
    def visit_Constant(s,n):
        if not isinstance(n.value,str): return
        if s.annotation and re.fullmatch(r"[A-Za-z_][\w.\[\], |\"]*",n.value) and "\n" not in n.value:
            # a forward reference
            for m in re.finditer(r"(?<![\w.])[A-Za-z_]\w*",n.value):
                f=s.by_table(m[0])
                new=s.cm.new_symbol(f) if f and f.rpartition(".")[2]==m[0] else None
                if new: s.cm.edit(s.path,n.lineno,n.col_offset+1+m.start(),m[0],new)
            return
        if id(n) in s.doc: return
        fs=s.func[-1] if s.func else None
        s.cm.strings.append((s.path,n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,n.value,fs,s.full()))
def self_any(target):
    kind,x=target
    return kind=="func" and not str(x).startswith(("hmmscope","bench"))
def dotted(n):
    if isinstance(n,ast.Name): return n.id
    if isinstance(n,ast.Attribute):
        d=dotted(n.value); return d and d+"."+n.attr
    return None

# ---------------------------------------------------------------- documents as modules
FENCE=re.compile(r"^```python[^\n]*\n(.*?)^```",re.M|re.S)
def documents(root):
    """Python in Markdown and notebooks as modules: (path of a module, its name, where its lines come from)."""
    out=[]; tmp=HERE/"docs_as_modules"; tmp.mkdir(exist_ok=True)
    for f in tmp.iterdir(): f.unlink()
    files=[p for p in git_files(root) if p.endswith((".md",".ipynb")) and not p.startswith(("results/","protocols/","CHANGELOG"))]
    for p in files:
        text=(root/p).read_text(); name="doc_"+re.sub(r"\W","_",p); lines=[]; origin=[]
        if p.endswith(".md"):
            for m in FENCE.finditer(text):
                first=text.count("\n",0,m.start(1))
                body=m[1].split("\n")[:-1]
                try: ast.parse("\n".join(body))
                except SyntaxError: continue
                for i,l in enumerate(body): lines.append(l); origin.append(first+i)
        else:
            nb=json.loads(text)
            for c,cell in enumerate(nb["cells"]):
                if cell["cell_type"]!="code": continue
                body="".join(cell["source"]).split("\n")
                body=[("pass #" if l.lstrip().startswith(("%","!")) else "")+l for l in body]
                try: ast.parse("\n".join(body))
                except SyntaxError: continue
                for i,l in enumerate(body): lines.append(l); origin.append((c,i))
        if lines:
            # imports of future first is no concern
            (tmp/(name+".py")).write_text("\n".join(lines)+"\n"); out.append((tmp/(name+".py"),name,(p,origin)))
    return out
def git_files(root): return subprocess.run(["git","ls-files"],cwd=root,capture_output=True,text=True,check=True).stdout.split("\n")[:-1]

def apply_lines(lines, edits):
    """Lines with {(line, col in bytes): (old, new)} put in."""
    by=defaultdict(list)
    for (l,c),(o,n) in edits.items(): by[l].append((c,o,n))
    out=list(lines)
    for l,es in by.items():
        b=out[l-1].encode()
        for c,o,n in sorted(es,reverse=True):
            assert b[c:c+len(o.encode())]==o.encode(),(l,c,o,b)
            b=b[:c]+n.encode()+b[c+len(o.encode()):]
        out[l-1]=b.decode()
    return out
