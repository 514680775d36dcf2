"""The page that a report is set into, light or dark as the reader's system is, and made of what it is given."""

from collections.abc import Iterable
from html import escape

from metamask_jax.version import __version__

_NARROW = '<figure class="panel">'  # takes half of the page
_STYLE = """
:root { color-scheme: light dark; --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
  sans-serif; --ink: #1e293b; --soft: #5b6b82; --rule: #cbd5e1; --grid: #e8edf4; --sheet: #fff; --back: #f1f5f9;
  --accent: #2563eb; --tint: #dbeafe; --warn: #d97706; --wrong: #e11d48; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --soft: #9fb0c7; --rule: #475569; --grid: #2a3850;
  --sheet: #172033; --back: #0b1120; --accent: #7fb0ff; --tint: #23406f; --warn: #fbbf24; --wrong: #fb7185; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 var(--font); }
header { background: linear-gradient(120deg, #0f172a, #1e3a8a); color: #fff; padding: 34px 0 66px; }
header > div, main { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
header .kind { text-transform: uppercase; letter-spacing: .12em; font-size: 13px; color: #93c5fd; }
h1 { margin: 4px 0 6px; font-size: 30px; line-height: 1.2; letter-spacing: -.01em; overflow-wrap: anywhere; }
header p { margin: 0; color: #cbd5e1; }
main { padding-bottom: 32px; margin-top: -40px; display: grid; gap: 18px; grid-template-columns: minmax(0, 1fr); }
h2 { margin: 22px 0 -4px; font-size: 22px; letter-spacing: -.01em; }
h3 { margin: 0 0 12px; font-size: 17px; font-weight: 600; }
h4 { margin: 0 0 8px; font-size: 15px; font-weight: 600; color: var(--soft); }
.panel, .card, .note, details { background: var(--sheet); border: 1px solid var(--grid); border-radius: 12px;
  box-shadow: 0 1px 3px rgb(15 23 42 / .06); }
.panel { padding: 18px 20px; margin: 0; min-width: 0; }
.note { margin: 0; padding: 12px 18px; border-left: 4px solid var(--warn); }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(116px, 1fr)); }
.card { padding: 13px; }
.card .label, .card .more { color: var(--soft); font-size: 14px; }
.card .value { font-size: 25px; font-weight: 650; letter-spacing: -.01em; font-variant-numeric: tabular-nums; }
.card:first-child .value { color: var(--accent); }
.card:has(.more > div + div) { grid-column: span 2; }
.card .more { display: flex; flex-wrap: wrap; gap: 0 14px; }
.plots { display: flex; flex-wrap: wrap; gap: 18px; }
.plots > .panel { flex: 1 1 calc(50% - 9px); }
.plots > .wide, .plots > .alone { flex-basis: 100%; }
.pictures { display: grid; gap: 12px; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); }
.pictures svg { display: block; width: 100%; max-width: 600px; height: auto; margin: 0 auto; }
figcaption { margin-top: 10px; color: var(--soft); font-size: 14.5px; max-width: 80ch; }
.strips { display: grid; gap: 10px 30px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.strip { display: flex; align-items: center; gap: 5px; min-width: 0; margin-bottom: 4px; }
.strip .thumb { flex: 0 1 58px; width: 58px; min-width: 0; aspect-ratio: 1; object-fit: cover; border-radius: 5px;
  outline: 2.5px solid transparent; outline-offset: -1px; }
.samples { grid-template-columns: repeat(auto-fit, minmax(min(100%, 280px), 1fr)); }
.thumb.exact { image-rendering: pixelated; }
.strip .thumb.other { outline-color: var(--wrong); }
.strip .arrow { flex: none; color: var(--soft); padding: 0 3px; }
.strip .name { flex: 0 0 92px; font-size: 14px; line-height: 1.25; overflow-wrap: anywhere; padding-left: 4px; }
.strip .name small { display: block; color: var(--soft); font-size: 13px; }
.halves { display: grid; gap: 14px 34px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); }
.halves .name { flex-basis: 112px; padding: 0 4px 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 14px; }
th, td { padding: 8px 14px 8px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
td .remarks { color: var(--soft); font-size: 13.5px; font-weight: 400; display: flex; flex-wrap: wrap; gap: 0 14px;
  white-space: nowrap; }
td:has(> .swatch), th:has(> .swatch) { white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
.results td:not(:first-child) { min-width: 110px; background: linear-gradient(var(--tint), var(--tint)) 0 100% /
  var(--share, 0%) 4px no-repeat; }
.results .best { font-weight: 700; color: var(--accent); }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px; }
details { padding: 14px 20px; }
summary { cursor: pointer; font-weight: 600; }
details .groups { columns: 3 300px; column-gap: 28px; margin-top: 14px; }
details table { break-inside: avoid; margin-bottom: 18px; font-size: 14px; }
details th, details td { padding: 3px 0; }
details td:last-child { text-align: right; font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  font-size: 13px; overflow-wrap: anywhere; padding-left: 12px; }
footer { text-align: center; color: var(--soft); font-size: 14px; padding-bottom: 28px; }
@media (min-width: 801px) { .alone { display: grid; grid-template-columns: 1fr 1fr; gap: 0 34px; }
  .alone h3 { grid-column: span 2; } .alone figcaption { align-self: center; } }
@media (max-width: 800px) { header > div, main { padding-left: 14px; padding-right: 14px; }
  .panel { padding: 14px; } .plots > .panel { flex-basis: 100%; } .pictures { grid-auto-flow: row; }
  .strip { gap: 4px; } .strip .name { flex-basis: 80px; font-size: 13px; padding-left: 2px; }
  .samples { grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); } .halves .strip { flex-wrap: wrap; }
  .halves .name { flex-basis: 100%; padding: 4px 0 0; } .halves .name small { display: inline; padding-left: 6px; }
  .halves .thumb { flex-basis: calc(12.5% - 4px); } }
@media print { body { background: #fff; } .panel, .card, details { break-inside: avoid; box-shadow: none; } }
"""


def page(*, kind: str, name: str, summary: str, blocks: list[str]) -> str:
    """A whole page, which needs no other file.

    Args:
      kind: what it is about, as text.
      name: its heading, as text.
      summary: the line below, as text.
      blocks: its elements; empty ones are left out.
    """
    body = "\n".join(filter(None, blocks))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)} · {escape(kind)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header><div><div class="kind">{escape(kind)}</div><h1>{escape(name)}</h1><p>{escape(summary)}</p></div></header>
<main>
{body}
</main>
<footer>metamask_jax {escape(__version__)}</footer>
</body>
</html>
"""


def section(title: str, *panels: str) -> str:
    """A heading and panels in two columns; nothing if there are none. One without a neighbour has its caption there."""
    narrow = [i for i, panel in enumerate(panels) if _NARROW in panel]
    alone = narrow[-1] if len(narrow) % 2 else None
    shown = "".join(
        panel.replace(_NARROW, '<figure class="panel alone">', 1) if i == alone else panel
        for i, panel in enumerate(panels)
    )
    return f'<h2>{escape(title)}</h2><section class="plots">{shown}</section>' if shown else ""


def remarks(lines: Iterable[str]) -> str:
    """What is to be said of a number in a table, in small letters below it: beside each other, where there is room."""
    text = "".join(f"<span>{escape(line)}</span>" for line in lines if line)
    return f'<div class="remarks">{text}</div>' if text else ""


def figure_panel(title: str, caption: str, figures: list[str]) -> str:
    """A panel of one or more SVG elements side by side."""
    pictures = "".join(figures)
    opening = _NARROW if len(figures) == 1 else '<figure class="panel wide">'
    return (
        f"{opening}<h3>{escape(title)}</h3>"
        f'<div class="pictures">{pictures}</div><figcaption>{escape(caption)}</figcaption></figure>'
    )
