"""The page that a report is set into."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} · MetaMask report</title>
<style>
:root {{ --ink: #0f172a; --soft: #64748b; --line: #e2e8f0; --back: #f1f5f9; --accent: #2563eb; }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }}
header {{ background: linear-gradient(120deg, #0f172a, #1e3a8a); color: #fff; padding: 34px 0 66px; }}
header > div, main {{ max-width: 1180px; margin: 0 auto; padding: 0 24px; }}
header .kind {{ text-transform: uppercase; letter-spacing: .12em; font-size: 12px; color: #93c5fd; }}
h1 {{ margin: 4px 0 6px; font-size: 30px; line-height: 1.2; letter-spacing: -.01em; overflow-wrap: anywhere; }}
header p {{ margin: 0; color: #cbd5e1; }}
main {{ padding-bottom: 32px; margin-top: -40px; display: grid; gap: 18px; }}
h2 {{ margin: 0 0 10px; font-size: 15px; font-weight: 600; }}
.panel, .card, .note, details {{ background: #fff; border: 1px solid var(--line); border-radius: 12px;
  box-shadow: 0 1px 3px rgb(15 23 42 / .06); }}
.panel {{ padding: 18px 20px; margin: 0; min-width: 0; }}
.note {{ margin: 0; padding: 12px 18px; border-left: 4px solid #f59e0b; }}
.cards {{ display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)); }}
.card {{ padding: 13px 14px; }}
.card .label {{ color: var(--soft); font-size: 12.5px; white-space: nowrap; }}
.card .value {{ font-size: 23px; font-weight: 650; letter-spacing: -.01em; font-variant-numeric: tabular-nums; }}
.card:first-child .value {{ color: var(--accent); }}
.plots {{ display: grid; gap: 18px; grid-template-columns: repeat(2, minmax(0, 1fr)); }}
.plots .wide {{ grid-column: 1 / -1; }}
.pictures {{ display: grid; gap: 12px; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); }}
.pictures img {{ display: block; width: 100%; height: auto; }}
figcaption {{ margin-top: 8px; color: var(--soft); font-size: 13px; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th {{ text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; }}
th, td {{ padding: 8px 12px; border-bottom: 1px solid var(--line); }}
tbody tr:last-child td {{ border-bottom: 0; }}
.results td:not(:first-child) {{ width: 30%; background: linear-gradient(#dbeafe, #dbeafe) 0 100% / var(--share, 0%) 4px
  no-repeat; }}
.results .best {{ font-weight: 700; color: var(--accent); }}
details {{ padding: 14px 20px; }}
summary {{ cursor: pointer; font-weight: 600; }}
details .groups {{ columns: 3 300px; column-gap: 28px; margin-top: 14px; }}
details table {{ break-inside: avoid; margin-bottom: 18px; font-size: 13px; }}
details th, details td {{ padding: 3px 0; }}
details td:last-child {{ text-align: right; font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  font-size: 12.5px; overflow-wrap: anywhere; padding-left: 12px; }}
footer {{ text-align: center; color: var(--soft); font-size: 12.5px; padding-bottom: 28px; }}
@media (max-width: 800px) {{ .plots {{ grid-template-columns: minmax(0, 1fr); }} .pictures {{ grid-auto-flow: row; }} }}
@media print {{ body {{ background: #fff; }} .panel, .card, details {{ break-inside: avoid; box-shadow: none; }} }}
</style>
</head>
<body>
<header><div><div class="kind">MetaMask run</div><h1>{name}</h1><p>{summary}</p></div></header>
<main>
{body}
</main>
<footer>metamask_jax {version}</footer>
</body>
</html>
"""
