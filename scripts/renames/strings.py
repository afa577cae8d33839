# executed by hand.py: `sub(path, (old, new), ...)`; what is not found is reported
sub("src/hmmscope/registry.py", ('("corpora",)', '("datasets",)'))
sub("tests/conftest.py", ('"processes", "corpora", "models"', '"processes", "datasets", "models"'))
sub("scripts/check_architecture.py", ('"corpora"', '"datasets"'), ('"machine"', '"system_info"'), ('"lab.looking"', '"lab.model_page"'))
sub("src/hmmscope/lab/verbs/options.py", ('"ask": InferOptions', '"infer": InferOptions'), ('flags=("--from",)', 'flags=("--reuse",)'),
    ('"how sequences are read", "where runs are trained"', '"input options", "execution options"'),
    ('"about given sequences", "about the process itself"', '"questions about sequences", "questions about the process"'),
    ("exact answers of a process: what follows from its matrices, or about given sequences", "exact inference: properties of a process, or answers about sequences"),
    ("also the likeliest path of states", "also the most likely state path (Viterbi)"),
    ("take over the steps that a shorter run has in common with it", "reuse the steps shared with a shorter run"),
    ("kill a run without a step for S seconds, and try it again", "restart a run that makes no progress for S seconds"),
    ("leave all but N seeds of the plan for later (--resume)", "run the first N seeds only; --resume runs the rest"))
sub("src/hmmscope/processes/capabilities.py", ('("likeliest_path", "draw_paths")', '("viterbi", "sample_posterior_paths")'), ('("remember",)', '("fixed_memory_predictions",)'),
    ('("driving",)', '("driving_matrices",)'), ('("told",)', '("decode_header",)'))
sub("Makefile", ("processes corpora training", "processes datasets training"))
sub("tests/adversarial/table.py", ('"corpora"', '"datasets"'))
sub("tests/test_architecture.py", ('"corpora.corpus"', '"datasets.process_dataset"'))

sub("src/hmmscope/lab/cli.py", ('"sample", "ask", "claims"', '"sample", "infer", "claims"'))
sub("src/hmmscope/lab/verbs/facts.py", ('_MOST = {"blocks": 64, "steps": 64, "memory": 10_000, "time": 10**6,', '_MOST = {"block_entropies": 64, "observability": 64, "memory": 10_000, "horizon": 10**6,'),
    ('--screen is for', '--ngram-baselines is for'), ('"blocks": (WORDS', '"block_entropies": (WORDS'), ('"steps": (STATES', '"observability": (STATES'))
sub("src/hmmscope/lab/verbs/sweep.py", ("--seeds, --instances or", "--seeds, --vary-process or"))
sub("src/hmmscope/lab/benchmark/board.py", ("again with --keep", "again with --copy-card"), ("again with --board", "again with --leaderboard"))
sub("src/hmmscope/lab/experiments/parts.py", ('f"--from {', 'f"--reuse {'))
sub("src/hmmscope/lab/experiments/running.py", ('f"--trained {', 'f"--pool {'))
sub("src/hmmscope/lab/sweeps/table.py", ("--silence SECONDS", "--heartbeat-timeout SECONDS"))
sub("src/hmmscope/processes/kalman.py", ('("transition_SS", "output_YS")', '("transition", "output")'), ('("state_noise_SS", "output_noise_YY")', '("state_noise", "output_noise")'))
def glob(pattern, *pairs):
    """Regular expressions in all files of a pattern; at least one has to be there."""
    hit=[0]*len(pairs)
    for p in sorted(root.glob(pattern)):
        t=o=p.read_text()
        for i,(a,b) in enumerate(pairs):
            t,n=re.subn(a,b,t); hit[i]+=n
        if t!=o: p.write_text(t)
    for h,(a,b) in zip(hit,pairs):
        if not h: problems.append(f"{pattern}: no {a}")
glob("src/hmmscope/inference/ragged.py", (r'\{"starts": mask', r'{"reset_mask": mask'))
sub("src/hmmscope/processes/observations.py", ('refuse_masked("starts"', 'refuse_masked("reset_mask"'))
for d in ("tests/inference/*.py","tests/emissions/*.py","tests/kernels/*.py"): glob(d, (r'\{"starts": ', r'{"reset_mask": '))
glob("tests/inference/test_side_by_side.py", (r'options\["starts"\]', r'options["reset_mask"]'), (r'"first", "transitions", "visits"', r'"initial", "transitions", "emissions"'))
glob("src/hmmscope/analysis/*.py", (r', "corpus", "must have', r', "dataset", "must have'))
glob("tests/**/*.py", (r'"num_twins": 0', r'"num_controls": 0'), (r', "num_twins", \[0\]', r', "num_controls", [0]'), (r'\{"process": MESS3, "over_training": True\}, "over_training: needs', r'{"process": MESS3, "over_checkpoints": True}, "over_checkpoints: needs'),
    (r'"tolerance": 1e-3, "heard": heard', r'"tolerance": 1e-3, "callback": heard'), (r'\{"like": hmm\}', r'{"symbols_from": hmm}'), (r'match=r"strength"', r'match=r"prior_strength"'),
    (r'keywords\}\.get\("own"\)', r'keywords}.get("managed")'), (r'for key in \("name", "experiment", "source", "says", "reading"\)', r'for key in ("name", "experiment", "source", "claim_text", "operationalization")'))
sub("src/hmmscope/runs/fitting.py", ('options["heard"]', 'options["callback"]'), ('{"heard": heard}', '{"callback": heard}'))
sub("src/hmmscope/runs/vector_sequences.py", ('(*known, "floor")', '(*known, "min_variance")'), ('"floor", "axis"', '"min_variance", "axis"'))
glob("src/hmmscope/emissions/*.py", (r'refuse_others\(others, \("strength"', r'refuse_others(others, ("prior_strength"'))
sub("src/hmmscope/sequences/data.py", ('"missing", "lengths", "like")', '"missing", "lengths", "symbols_from")'))
sub("src/hmmscope/lab/evidence/ledger.py", ('names = ("name", "experiment", "source", "says", "reading")', 'names = ("name", "experiment", "source", "claim_text", "operationalization")'))
sub("src/hmmscope/lab/evidence/finding.py", ('for name in ("title", "claim", "source", "reading", "rule_version")', 'for name in ("title", "claim", "source", "operationalization", "rule_version")'))
sub("src/hmmscope/runs/config.py", ('not in ("reading", "source")', 'not in ("read_options", "source")'))
glob("src/hmmscope/lab/verbs/infer.py", (r"is asked of sequences; give", "is a question about sequences; give"), (r"is asked of the process itself; leave", "is a question about the process itself; leave")) if False else None

# ---- fields whose stored key keeps the old name
ns={}; exec((Path(__file__).parent/"renames.py").read_text(),ns)
def stored(old_full, new):
    cls,_,old=old_full.rpartition("."); module,_,name=cls.rpartition(".")
    parts=module.split("."); cur=""; path=[]
    for i,p in enumerate(parts): cur=".".join(parts[:i+1]); path.append(ns["MODULES"].get(cur,p))
    f=root/"src"/("/".join(path)+".py"); newcls=ns["SYMBOLS"].get(cls,name)
    text=f.read_text(); tree=ast.parse(text); lines=text.split("\n")
    for c in ast.walk(tree):
        if isinstance(c,ast.ClassDef) and c.name==newcls:
            for b in c.body:
                if isinstance(b,ast.AnnAssign) and isinstance(b.target,ast.Name) and b.target.id==new:
                    ann=ast.get_source_segment(text,b.annotation); meta=f'metadata={{"stored": "{old}"}}'
                    if "ClassVar" in ann: return
                    if b.value is None: val=f"field({meta})"
                    else:
                        v=ast.get_source_segment(text,b.value)
                        if v.startswith("field("): val=v[:-1]+f", {meta})"
                        else: val=f"field(default={v}, {meta})"
                    lines[b.lineno-1:b.end_lineno]=[" "*b.col_offset+f"{new}: {ann} = {val}"]
                    out="\n".join(lines)
                    if not re.search(r"from dataclasses import .*\bfield\b",out): out=re.sub(r"from dataclasses import (?!.*\bfield\b)(.*)",r"from dataclasses import \1, field",out,count=1)
                    f.write_text(out); return
    problems.append(f"stored: {old_full} not found in {f.relative_to(root)}")
for k,v in ns["STORED_MEMBERS"].items(): stored(k,v)
def loops(path):
    """Loop variables called `field` get another name where `field` is imported."""
    p=root/path; text=p.read_text(); tree=ast.parse(text); ls=text.split("\n"); at=set()
    for n in ast.walk(tree):
        if isinstance(n,(ast.For,ast.comprehension)) and isinstance(n.target,ast.Name) and n.target.id=="field": 
            for m in ast.walk(n):
                if isinstance(m,ast.Name) and m.id=="field": at.add((m.lineno,m.col_offset))
    for l,c in sorted(at,reverse=True): ls[l-1]=ls[l-1][:c]+"name"+ls[l-1][c+5:]
    p.write_text("\n".join(ls))
loops("src/hmmscope/models/base.py"); loops("src/hmmscope/training/spec.py")

