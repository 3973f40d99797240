//! The style sheet of the page, light and dark.
//!
//! The eight series colours are distinguishable with the common colour deficiencies (after Okabe
//! and Ito). They are a little darker in the light theme and a little lighter in the dark one.

/// The style sheet; series classes are `s0` to `s7`.
pub(super) const CSS: &str = "
:root { color-scheme: light dark; --paper: #fbfaf7; --card: #ffffff; --ink: #1d2328;
  --soft: #5d676f; --line: #d9dbd6;
  --s0: #0067a5; --s1: #c8500a; --s2: #00805e; --s3: #a8497f; --s4: #a87400; --s5: #2f8fc4;
  --s6: #6a51a3; --s7: #555555; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181c; --card: #1c2228; --ink: #e8eaec; --soft: #a3adb5; --line: #353d45;
    --s0: #5aaee8; --s1: #f2834a; --s2: #3cc79b; --s3: #e08fbd; --s4: #e6b23e; --s5: #8fd0f5;
    --s6: #b09ae0; --s7: #b5b5b5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; }
p { max-width: 44rem; }
.lead { color: var(--soft); font-size: 1.0625rem; margin: 0 0 1.5rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem;
  margin: 1.5rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .9rem 1rem; }
.tile b { display: block; font-size: 1.75rem; line-height: 1.2; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .875rem; }
figure { margin: 1.25rem 0; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem;
  padding: 1rem 1rem .5rem; overflow-x: auto; }
figcaption { margin-bottom: .5rem; }
figcaption b { font-weight: 650; }
figcaption span { color: var(--soft); font-size: .875rem; display: block; }
svg { display: block; width: 100%; height: auto;
  font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; }
svg text { fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .soft { fill: var(--soft); }
svg .head { font-weight: 650; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .reference { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 4; }
svg .lead-line { stroke: var(--line); stroke-width: 1; }
svg .curve { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
svg .spread { stroke: currentColor; stroke-width: 1.5; opacity: .45; }
svg .whisker { stroke: var(--ink); stroke-width: 1.5; opacity: .6; }
svg .mark { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
svg .bar { fill: currentColor; opacity: .85; }
svg .point:hover .mark { stroke: var(--ink); }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); }
.s3 { color: var(--s3); } .s4 { color: var(--s4); } .s5 { color: var(--s5); }
.s6 { color: var(--s6); } .s7 { color: var(--s7); }
.wide { overflow-x: auto; margin: 1.25rem 0; }
table { border-collapse: collapse; font-size: .875rem; width: 100%; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 550; }
th.num, td.num { text-align: right; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem;
  font-size: .875rem; }
dt { color: var(--soft); } dd { margin: 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
@media print { body { background: #fff; } figure, .tile { break-inside: avoid; } }
";
