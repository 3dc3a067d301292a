"""How soon a page can be used, in Chrome or Chromium on this machine, beside the budgets.

    .venv/bin/python benchmarks/widgets.py [--turns 5]

For each chapter of the built site: the time from asking for the page until its first widget shows a picture
and moves, with nothing in the browser's cache, and the time from a key on a slider until the next picture is
drawn. Medians over the turns; each turn of a slider walks it to its end and back.
"""

import argparse
import statistics
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "browser")]

import chrome  # noqa: E402
from budgets import FIRST_WIDGET_SECONDS, SLIDER_SECONDS  # noqa: E402
from pages import notebooks  # noqa: E402
from serving import serve  # noqa: E402

# Milliseconds since the page was asked for, once its first widget shows a picture and has a slider.
FIRST = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const widget = () => document.querySelector('.widget-subarea');
  while (!widget()?.querySelector('[role=slider]') || !widget().querySelector('img')) await frame();
  await widget().querySelector('img').decode();
  await frame();
  return performance.now();
}"""

# From now on, note for each key how many milliseconds later the next picture is drawn.
WATCH = """(widget) => {
  window.times = [];
  widget.addEventListener('keydown', async (event) => {
    const frame = () => new Promise(requestAnimationFrame);
    const before = widget.querySelector('img').alt;  // each frame has its own
    while (widget.querySelector('img').alt === before) await frame();
    await widget.querySelector('img').decode();
    await frame();
    window.times.push(performance.now() - event.timeStamp);
  }, true);
}"""


def measure(browser, address):
    """Seconds to the first widget, and from each key to its picture."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address, wait_until="commit")
    first = page.evaluate(FIRST)
    widget = page.locator(".widget-subarea").first
    widget.evaluate(WATCH)
    slider = widget.get_by_role("slider").first
    end = int(float(slider.get_attribute("aria-valuemax")))
    for count, key in enumerate(["ArrowRight"] * end + ["ArrowLeft"] * end, start=1):
        slider.press(key)
        page.wait_for_function("(count) => times.length === count", arg=count)
    times = page.evaluate("() => times")
    context.close()
    return first / 1000, [time / 1000 for time in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="how often each page is opened")
    turns = parser.parse_args().turns
    site = ROOT / "_build" / "html"
    if not site.is_dir():
        raise SystemExit("There is no built site: run `make book` first.")
    print(f"{'':24s} first widget   slider   (medians of {turns} turns)")
    with sync_playwright() as playwright, serve(site) as address:
        browser = playwright.chromium.launch(executable_path=chrome.find(), args=chrome.FLAGS)
        for path in notebooks(ROOT):
            runs = [measure(browser, f"{address}/{path}") for _ in range(turns)]
            first = statistics.median(first for first, _ in runs)
            moves = statistics.median(time for _, times in runs for time in times)
            print(f"{Path(path).stem:24s} {first:8.2f} s {1000 * moves:8.0f} ms", flush=True)
        browser.close()
    print(f"{'budget':24s} {FIRST_WIDGET_SECONDS:8.2f} s {1000 * SLIDER_SECONDS:8.0f} ms")


if __name__ == "__main__":
    main()
