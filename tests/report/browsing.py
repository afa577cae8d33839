"""What the tests in a browser share: Chromium, and a page that is watched. Marked `e2e`, run by `make test-page`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page with what it said, asked for and opened."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.file = file
        self.said: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page = browser.new_context(**context).new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(file.as_uri())
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")  # all is drawn

    def assert_quiet(self) -> None:
        assert self.said == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.file.as_uri()]
        assert self.dialogs == []

    def assert_fits(self) -> None:
        assert self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
