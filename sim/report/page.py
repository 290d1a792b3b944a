"""The page: one HTML file that needs nothing but itself.

All text that a study holds is escaped on its way in; the data of the figures are JSON inside a script element that is
no program, with no "<" in it. The page's own policy forbids it to load anything from anywhere.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from sim.report import style
from sim.report.figure import Choice, Figure, Key

VEGA_LITE = "6.1"
"""The version of Vega-Lite that figures are written for."""
ENTRY = "window.vegaEmbed = vegaEmbed;"
"""What `page.js` uses of the bundle."""
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
"""Vega compiles its expressions, hence 'unsafe-eval'; nothing may come from the network."""


def page(title: str, lead: str, sections: Iterable[str], figures: Sequence[Figure], footer: str) -> str:
    """Return the whole file. `sections` are HTML, `title`, `lead` and `footer` plain text."""
    data = {
        "config": style.config(),
        "figures": {
            one.name: {"title": one.title, "spec": one.spec, "rows": one.datasets,
                       "choices": [[option.blanks for option in choice.options] for choice in one.choices]}
            for one in figures
        },
    }  # fmt: skip
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{_themes()}
{_resource("page.css")}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{"".join(sections)}
<footer>{escape(footer)}</footer>
</main>
<script id="report" type="application/json">{_inert(data)}</script>
<script>{_bundle()}</script>
<script>
{_resource("page.js")}</script>
</body>
</html>
"""


def section(title: str, *content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{''.join(content)}</section>\n"


def figure_section(figure: Figure) -> str:
    """Return a figure with its choices and its legend; `page.js` draws it."""
    controls = "".join(map(_select, figure.choices))
    return (
        f'<section id="figure-{figure.name}">\n<h2>{escape(figure.title)}</h2>\n'
        f'<div class="bar">{controls}<button type="button">Save as PNG</button></div>\n{_legend(figure.legend)}'
        f'<div class="plot" role="img" aria-label="{escape(figure.title)}"></div>\n'
        f'<p class="caption">{escape(figure.caption)}</p>\n</section>\n'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "cards") -> str:
    """Return a table whose cells are HTML; on a narrow screen each row becomes a card."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td data-name="{escape(name)}">{cell}</td>' for name, cell in zip(head, row, strict=True))
        + "</tr>\n" for row in rows
    )  # fmt: skip
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table>\n'


def cell(text: str, small: str = "") -> str:
    """Return a cell of escaped text, with a smaller line below it."""
    return f"<span>{escape(text)}</span>" + (f"<small>{escape(small)}</small>" if small else "")


def none(text: str, small: str = "") -> str:
    """Return a cell that says that there is no figure, and why."""
    return f'<span class="none">{escape(text)}</span>' + (f"<small>{escape(small)}</small>" if small else "")


def paragraph(text: str, kind: str = "caption") -> str:
    return f'<p class="{kind}">{escape(text)}</p>\n'


def listing(lines: Iterable[str]) -> str:
    return '<ul class="remarks">\n' + "".join(f"<li>{escape(line)}</li>\n" for line in lines) + "</ul>\n"


def folded(title: str, *content: str) -> str:
    return f"<details>\n<summary>{escape(title)}</summary>\n{''.join(content)}</details>\n"


def address(url: str) -> str:
    """Return a link to a source on the web; anything else stays text."""
    if url.startswith(("https://", "http://")):
        return f'<a href="{escape(url)}" rel="noreferrer">{escape(url.split("://", 1)[1])}</a>'
    return escape(url)


def chip(key: Key) -> str:
    """Return the line that stands for a study."""
    dash = " ".join(map(str, key.dash)) if key.dash and key.dash[1] else ""
    if key.dash is None:
        shape = f'<rect width="12" height="8" fill="{key.colour}"/>'
        return f'<svg width="12" height="8" aria-hidden="true">{shape}</svg>'
    line = f'<line x1="0" y1="4" x2="26" y2="4" stroke="{key.colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>'
    return f'<svg width="26" height="8" aria-hidden="true">{line}</svg>'


def _legend(keys: Sequence[Key]) -> str:
    entries = "".join(f"<li>{chip(key)}{escape(key.label)}</li>" for key in keys)
    return f'<ul class="keys">{entries}</ul>\n' if keys else ""


def _select(choice: Choice) -> str:
    """Return a choice as a select element; hidden where there is nothing to choose."""
    options = "".join(
        f'<option value="{place}">{escape(option.label)}</option>' for place, option in enumerate(choice.options)
    )
    hidden = " hidden" if len(choice.options) < 2 else ""
    return (
        f'<label{hidden}>{escape(choice.label)} <select aria-label="{escape(choice.label)}">{options}</select></label>'
    )


@cache
def _bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    return vl_convert.javascript_bundle(ENTRY, VEGA_LITE)


def _themes() -> str:
    def variables(theme: dict[str, str]) -> str:
        return " ".join(f"--{name}: {colour};" for name, colour in theme.items())

    light, dark = variables(style.LIGHT), variables(style.DARK)
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _resource(name: str) -> str:
    return (files("sim.report") / name).read_text(encoding="utf-8")


def _inert(data: Any) -> str:
    """Return JSON that cannot end the element around it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
