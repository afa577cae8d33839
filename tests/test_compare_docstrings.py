"""The comparison of documented facts between two trees."""

from script_modules import script

compare = script("compare_docstrings")
BEFORE = '''"""A module."""


def fit(data, seed):
    """Fit a model.

    Args:
        data: Sequences.
        seed, order: Numbers.

    Returns:
        The model.

    Raises:
        InputError: No data.

    Source: [Limits] Table 3.
    """


def gone(x):
    """Do something.

    Args:
        x: A number.
    """
'''


def test_lost_facts_and_added_comments_are_listed() -> None:
    before = compare.documented({"src/a/b.py": BEFORE})
    assert before.facts["a.b.fit"] == {
        "Args: data", "Args: seed", "Args: order", "Returns", "Raises: InputError", "Source", "cites [Limits] Table 3.",
    }  # fmt: skip
    assert compare.lost(before, before) == []
    text = BEFORE.partition("def gone")[0].replace("seed, order", "seed").replace("InputError: No data.", "None.")
    text = text.replace("Returns:", "Gives:").replace("data: Seq", "Seq")
    after = compare.documented({"src/a/b.py": text + "# why\n"})
    assert compare.lost(before, after) == [  # `order` is no parameter
        "a.b.fit: Args: data", "a.b.fit: Raises: InputError", "a.b.fit: Returns", "a.b: 0 -> 1 comments",
    ]  # fmt: skip
    assert after.words < before.words


def test_the_checkout_is_read() -> None:
    known = compare.here()
    assert any(path.startswith("papers/") for path in known)
    path = "src/hmmscope/runs/fitting.py"
    assert "Raises: InputError" in compare.documented({path: known[path]}).facts["hmmscope.runs.fitting.fit"]
