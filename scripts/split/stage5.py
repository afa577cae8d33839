"""Stage 5: three wheels; the check installs the library alone first, then the papers, then the studies."""

from tree import Tree

BUILD = '''\
    for source in (ROOT, ROOT / "papers", ROOT / "studies"):
        call(sys.executable, "-m", "build", "--outdir", dist, source, cwd=folder)
    built = sorted(dist.iterdir())
'''
INSTALL = '''\
    tried = set[str]()
    for name, extras, commands in DISTRIBUTIONS:
        (wheel,) = dist.glob(f"{name}-*.whl")
        words = ["install", "-q", "-c", pins, "--find-links", dist, f"{wheel}{extras}"]
        call(folder / "venv/bin/python", "-m", "pip", *words, cwd=folder)
        for line in commands.strip().splitlines():
            begun = time.monotonic()
            call(folder / "venv/bin/hmmscope", *line.split(), cwd=work)
            tried.add(line.split()[0])
            print(f"{time.monotonic() - begun:6.1f} s  {name}: hmmscope {line}", flush=True)
    print(f"{len(tried)} verbs and options of {', '.join(name for name, *_ in DISTRIBUTIONS)} work")
'''


def run(tree: Tree) -> None:
    for package in ("papers", "studies"):
        tree.write(f"{package}/LICENSE", tree.read("LICENSE"))
        path = f"{package}/pyproject.toml"
        tree.edit(path, 'license = "Apache-2.0"\n', 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]\n')
        if "readme =" not in (text := tree.read(path)):
            about = next(line for line in text.splitlines() if line.startswith("description = ")).partition(" = ")[2]
            tree.edit(path, "requires-python", f'readme = {{ text = {about}, content-type = "text/markdown" }}\nrequires-python')
    path = "scripts/check_package.py"
    if "DISTRIBUTIONS" not in tree.read(path):
        tree.edit_re(
            path,
            r"^(run limits-table1 --scale smoke)",
            '"""\n#: The same, once hmmscope-papers is installed too.\nOF_PAPERS = """\n\\1',
        )
        tree.edit(
            path,
            "report paper/limits-fig3 --style web --figures figures -q\n\"\"\"\n",
            "report paper/limits-fig3 --style web --figures figures -q\n\"\"\"\n"
            "#: And hmmscope-studies.\n"
            'OF_STUDIES = """\nrun limits-architectures --dry-run\nbenchmark\nclaims\n"""\n'
            "#: In the order of dependency: name, extras, and what is tried before the next is there.\n"
            'DISTRIBUTIONS = (\n    ("hmmscope", "[pages]", COMMANDS),\n    ("hmmscope_papers", "", OF_PAPERS),\n'
            '    ("hmmscope_studies", "", OF_STUDIES),\n)\n',
        )
        tree.edit(
            path,
            "{line.split()[0] for line in COMMANDS.strip().splitlines()}",
            "{line.split()[0] for _, _, lines in DISTRIBUTIONS for line in lines.strip().splitlines()}",
        )
        tree.edit(
            path,
            '    call(sys.executable, "-m", "build", "--outdir", dist, ROOT, cwd=folder)\n    (wheel,), built = dist.glob("*.whl"), sorted(dist.iterdir())\n',
            BUILD,
        )
        tree.edit_re(path, r"^    call\(folder / \"venv/bin/python\", \"-m\", \"pip\", \"install\"(?:.*\n)+?(?=\n\nif __name__)", INSTALL)
    tree.edit_re(
        ".github/workflows/tests.yml",
        r"^( *)pyproject\.toml\n(?! *papers)",
        r"\1pyproject.toml\n\1papers/pyproject.toml\n\1studies/pyproject.toml\n",
    )
    tree.notes.append("scripts/project_metadata.py: fill the owner's fields into papers/pyproject.toml and studies/pyproject.toml as well")
    tree.notes.append("versions of papers/pyproject.toml and studies/pyproject.toml: raised by hand with src/hmmscope/__init__.py")
