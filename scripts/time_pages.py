"""Measure the time to the first picture of a page: milliseconds from navigation to the frame that shows it.

    python scripts/time_pages.py runs/demo/report.html look.html

Opens each page from disk five times with an empty cache; prints the median, the longest time and the load of the machine.
Needs Playwright and Chromium (the extra e2e).
"""

import argparse
import os
import statistics
from pathlib import Path

from playwright.sync_api import sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
#: Records the frame after the first chart, triangle or tape has content.
WATCH = """
window.firstPicture = new Promise((resolve) => {
  const drawn = () => document.querySelector(".plot > svg > *, .triangle svg > *, .maps canvas, .chips > *");
  const watch = new MutationObserver(() => {
    if (!drawn()) return;
    watch.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now())));
  });
  watch.observe(document, { childList: true, subtree: true });
});
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        for page in options.pages:
            waits = []
            for _ in range(5):
                tab = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
                tab.add_init_script(WATCH)
                tab.goto(page.resolve().as_uri())
                waits.append(tab.evaluate("window.firstPicture"))
                tab.context.close()
            size, load = page.stat().st_size / 1e6, os.getloadavg()[0]
            middle, longest = statistics.median(waits), max(waits)
            print(f"{page}: {middle:.0f} ms, at most {longest:.0f} ms; {size:.2f} MB; load {load:.1f}")
        browser.close()


if __name__ == "__main__":
    main()
