"""CSS of the report: light or dark by the reader's setting, for screens of any width and for paper."""

from __future__ import annotations

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #fcfcfb; --card: #ffffff; --ink: #1c2126; --muted: #5f6b76; --grid: #e3e6e8; --accent: #1f5fa8;
  --sent: #ccd8e5; --consumed: #1f5fa8; --missing: #c62f2f; --dead: #7a3b3b; --repeated: #a565b8; --out-of-order: #cf7a1c; --late: #b59a00;
  --stray: #7d868f; --p50: #1f5fa8; --p95: #5b9bd0; --p99: #cf7a1c; --good: #1d7a4c; --bad: #b62323;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --card: #1b1f23; --ink: #e7eaec; --muted: #9ba6b0; --grid: #30363c; --accent: #78b1ee;
    --sent: #33475c; --consumed: #78b1ee; --missing: #f0625d; --dead: #b98b86; --repeated: #c893d8; --out-of-order: #eb9b46; --late: #d9c04a;
    --stray: #98a2ab; --p50: #78b1ee; --p95: #4c83b8; --p99: #eb9b46; --good: #55c08a; --bad: #f27d78;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: .35rem 0 .6rem; overflow-wrap: anywhere; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .75rem; overflow-wrap: anywhere; }
h3 { font-size: .95rem; margin: 1.75rem 0 .5rem; }
p { margin: 0 0 .4rem; max-width: 46rem; }
a { color: var(--accent); }
.span, .none { color: var(--muted); }
time { white-space: nowrap; font-variant-numeric: tabular-nums; }
.verdict { display: inline-block; margin: 0; padding: .1rem .7rem; border-radius: 1rem; font-weight: 600; font-size: .9rem; color: var(--paper); }
.verdict.clean { background: var(--good); }
.verdict.wrong { background: var(--bad); }
.breaches { margin: 1rem 0 0; padding: .6rem 1rem .6rem 2rem; border-left: 4px solid var(--bad); background: var(--card); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: 1px; margin: 1.5rem 0 0; background: var(--grid); border: 1px solid var(--grid); }
.figures div { background: var(--card); padding: .75rem 1rem; }
.figures dt { color: var(--muted); font-size: .85rem; }
.figures dd { margin: 0; font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums; }
dd.zero, td.zero { color: var(--muted); font-weight: 400; }
aside { margin: 1.5rem 0 0; color: var(--muted); font-size: .9rem; }
aside h2 { font-size: .9rem; margin: 0 0 .25rem; color: var(--ink); }
aside ul { margin: 0; padding-left: 1.2rem; max-width: 56rem; }
section { margin-top: 3rem; padding-top: 1.5rem; border-top: 1px solid var(--grid); }
figure { margin: .75rem 0 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 38rem; height: auto; }
svg text { font-family: inherit !important; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th, td { padding: .4rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
thead th { color: var(--muted); font-weight: 500; white-space: nowrap; }
tbody th { font-weight: 600; min-width: 8rem; overflow-wrap: anywhere; }
th:first-child, td:first-child { padding-left: 0; }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.bad { color: var(--bad); font-weight: 600; }
td code { display: inline-block; min-width: 9rem; }
td.id code { white-space: nowrap; font-size: .75rem; }
td.t { white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font: .92em/1.4 ui-monospace, "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
details { border-bottom: 1px solid var(--grid); padding: .5rem 0; }
summary { cursor: pointer; font-weight: 600; }
.count { color: var(--muted); font-weight: 400; margin-left: .4rem; }
.dot { display: inline-block; width: .7rem; height: .7rem; margin-right: .5rem; border-radius: 50%; }
.dot.missing { background: var(--missing); } .dot.dead { background: var(--dead); } .dot.repeated { background: var(--repeated); }
.dot.out_of_order { background: var(--out-of-order); } .dot.late { background: var(--late); } .dot.stray { background: var(--stray); }
@media print { main { max-width: none; padding: 0; } details > * { display: block; } section { break-inside: avoid-page; } }
"""
