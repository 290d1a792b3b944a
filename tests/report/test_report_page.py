"""The page in a real browser: every figure drawn, nothing said on the console, nothing loaded, no hostile name run."""

from pathlib import Path

import pytest
from report.browser import Browser
from report.report_studies import ACCURACY, with_centroids, written

from sim.report.build import build_report
from sim.report.figure import fill

FIGURES = "document.querySelectorAll('.plot').length"
DRAWN = "[...document.querySelectorAll('.plot')].filter((plot) => plot.querySelectorAll('svg path').length > 2).length"
HOSTILE = (
    "<script>hacked=1</script>", "</script><img src=x onerror=hacked=1>", "\"'><b onmouseover=hacked=1>", "$x$study",
    "constructor", "{{7*7}}", "a\x1b[2Jb",
)  # fmt: skip


@pytest.fixture(scope="module")
def reported(real_study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies, so that there are legends and choices."""
    folder = tmp_path_factory.mktemp("page")
    other = with_centroids(written(folder / "other", method="fedavg", link="none", late=("d2",)))
    return build_report([real_study, other], folder / "report.html")[0]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1080, False), (820, True), (390, False), (390, True)])
def test_every_figure_is_drawn_and_nothing_scrolls_sideways(
    page: Browser, reported: Path, width: int, dark: bool
) -> None:
    page.complaints.clear()
    page.open(reported, width=width, dark=dark)
    assert page.run(FIGURES) == page.run(DRAWN) == 6
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("[...document.querySelectorAll('.plot svg')].every((s) => s.clientWidth <= innerWidth)")
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    assert page.complaints == []


def test_a_printed_page_is_light_and_fits(page: Browser, reported: Path) -> None:
    """720 CSS pixels are what a sheet of A4 leaves between its margins."""
    page.open(reported, width=720, dark=True)
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        assert page.run("document.documentElement.scrollWidth") <= 720
        assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        page.call("Emulation.setEmulatedMedia", media="")


def test_every_choice_draws(page: Browser, reported: Path) -> None:
    page.complaints.clear()
    page.open(reported, width=800)
    tried = page.run(
        "(async () => { let tried = 0; for (const [name, figure] of Object.entries(report.figures)) {"
        "const box = document.getElementById(`figure-${name}`);"
        "for (const select of box.querySelectorAll('select')) for (let i = 0; i < select.options.length; i++) {"
        "select.selectedIndex = i; await draw(figure, box); tried += box.querySelectorAll('.plot svg').length; } }"
        "return tried; })()"
    )
    assert tried == page.run("document.querySelectorAll('select option').length") > 20
    assert page.complaints == []


def test_a_figure_can_be_saved(page: Browser, reported: Path) -> None:
    page.open(reported, width=800)
    page.run(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push([this.download, this.href]); }"
    )
    page.run("(async () => { for (const [name, figure] of Object.entries(report.figures))"
             " await save(figure, document.getElementById(`figure-${name}`), name); })()")  # fmt: skip
    saved = page.run("saved")
    assert len(saved) == 6 and saved[0][0] == "accuracy.png"
    assert all(href.startswith("data:image/png;base64,") and len(href) > 5000 for _, href in saved)


def test_blanks_are_filled_alike_in_both_languages(page: Browser, reported: Path) -> None:
    import json

    page.open(reported, width=800)
    spec = {"a": "$x", "b": ["x $x_title", {"domain": ["$x"]}, {"domain": "$x"}], "c": 1, "d": None, "e": "$y"}
    blanks = {"$x": [1, 2], "$x_title": "a $y", "$y": 7}
    here = fill(spec, blanks)
    assert here["b"][1:] == [{"domain": ["$x"]}, {"domain": [1, 2]}]
    assert page.run(f"fill({json.dumps(spec)}, {json.dumps(blanks)})") == here


def test_hostile_names_stay_text(page: Browser, tmp_path: Path) -> None:
    devices = dict.fromkeys(HOSTILE, ACCURACY["d1"])
    curve = [(1, "<i>recon</i>", 1), (1, "align", 1), (2, "</script>", 1), (2, "align", 1)]
    study = written(
        tmp_path / "<img src=x onerror=hacked=1>", method="<u>mine</u>", devices=devices, curve=curve,
        stages={"</style><script>hacked=1</script>": 1.0, "$height": 2.0}, link="<script>hacked=1</script>",
        late=HOSTILE[:2], note="<script>hacked=1</script>",
    )  # fmt: skip
    (report,) = build_report([study], tmp_path / "r.html")
    page.complaints.clear()
    page.open(report, width=1000)
    assert page.complaints == []
    assert page.run("typeof hacked") == "undefined"
    assert (
        page.run("document.querySelectorAll('main img, main script, main b[onmouseover], main i, main u').length") == 0
    )
    assert page.run("document.querySelectorAll('script').length") == 3
    assert page.run("document.querySelector('main').textContent.includes('round 1: <script>hacked=1</script>')")
    # Tooltips make HTML of data: show one.
    page.run(
        "(() => { const bar = document.querySelector('#figure-timeline .mark-rect path');"
        "const box = bar.getBoundingClientRect(); const at = {bubbles: true, clientX: box.x + 3, clientY: box.y + 3};"
        "for (const kind of ['pointerover', 'pointermove', 'mouseover', 'mousemove'])"
        "bar.dispatchEvent(new (kind.startsWith('p') ? PointerEvent : MouseEvent)(kind, at)); })()"
    )
    assert "hacked=1" in page.run("document.getElementById('vg-tooltip-element').textContent")
    assert page.run("document.querySelectorAll('#vg-tooltip-element :is(script, img, b)').length") == 0
    assert page.run("typeof hacked") == "undefined"
