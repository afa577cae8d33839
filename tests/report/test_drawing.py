"""Drawings beside their figures: made once, and again when the figure or the drawing has changed."""

from pathlib import Path

import pytest

from hmmscope.errors import InputError, RefusedError
from hmmscope.lab.report import drawing
from hmmscope.storage import store
from report_cases import a_figure, lines


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    """A folder with one figure that is drawn."""
    path = tmp_path / "one"
    store.make_folder(path / "figures")
    store.write_json(path / "figures" / "00-one.json", a_figure(lines()).to_data())
    assert {one.suffix for one in drawing.draw_folder(path)} == {".pdf", ".png"}
    return path


def test_what_is_drawn_is_left_alone(drawn: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in drawn.glob("figures/*")}
    assert drawing.draw_folder(drawn) == []
    assert {path: path.stat().st_mtime_ns for path in drawn.glob("figures/*")} == before


@pytest.mark.parametrize("what", ["title", "missing", "older code", "another file"])
def test_what_has_changed_is_drawn_again(what: str, drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = drawn.glob("figures/*.json")
    image = source.with_suffix(".png")
    before = image.read_bytes()
    if what == "title":
        store.write_json(source, store.read_json(source) | {"title": "Another"})
    elif what == "missing":
        image.unlink()
    elif what == "older code":
        monkeypatch.setattr(drawing, "_code", lambda: b"older")
    else:
        image.write_bytes(b"no drawing")
    assert len(drawing.draw_folder(drawn)) == 2
    assert image.read_bytes()[:8] == before[:8]
    monkeypatch.undo()
    assert len(drawing.draw_folder(drawn)) == (2 if what == "older code" else 0)


def test_a_link_is_not_replaced(drawn: Path) -> None:
    (image,) = drawn.glob("figures/*.png")
    image.rename(drawn / "elsewhere.png")
    image.symlink_to(drawn / "elsewhere.png")
    with pytest.raises(RefusedError, match="is not a regular file, so it is not replaced"):
        drawing.draw_folder(drawn)
    assert image.is_symlink()


def test_a_figure_that_is_none_is_refused(drawn: Path) -> None:
    (source,) = drawn.glob("figures/*.json")
    store.write_json(source, {"title": "x"})
    with pytest.raises(InputError):
        drawing.draw_folder(drawn)
