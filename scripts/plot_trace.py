#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a step of a trace file (ferry train --trace FILE), lane by lane, as SVG, for docs and for a quick look.

A colour stands for what a span does (the name up to its target), a number or letter in it for the target:
"forward layer 3" is 3 in the colour of "forward". Needs nothing but Python.
"""
import argparse
import json
import re
import sys
from html import escape

LANES = ["h2d", "compute", "d2h", "optimizer", "launcher"]
COLOURS = {
    "weights": "#4e79a7",
    "embedding rows": "#86bcb6",
    "tokens": "#86bcb6",
    "residual": "#9c755f",
    "forward": "#59a14f",
    "loss": "#8cd17d",
    "backward": "#f28e2b",
    "norms": "#ffbe7d",
    "gradient": "#e15759",
    "AdamW": "#b07aa1",
    "launch step": "#d4d4d4",
    "wait": "#ff9da7",
}
OTHER = "#bab0ac"
LEFT, RIGHT, ROW, GAP, TOP = 84, 16, 26, 8, 20
CHARACTER = 6.2  # width of one at font size 10


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="file that ferry train or ferry bench step wrote (--trace)")
    parser.add_argument("svg", help="file to write")
    parser.add_argument("--step", type=int, help="draw the time of this step, what belongs to others paler (default: a "
                                                 "step from the middle)")
    parser.add_argument("--width", type=int, default=1160, help="of the picture, in pixels")
    return parser.parse_args()


def read_spans(path):
    """[(lane, name, step, begin, end)], times in microseconds."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return [
        (lanes[e["tid"]], e["name"], e["args"]["step"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"
    ]


def choose_step(spans, wanted):
    """The wanted step, or where that is None one from the middle: at the ends, spans of a step may be missing."""
    steps = sorted({s[2] for s in spans if s[0] != "launcher"})
    if not steps:
        sys.exit("plot_trace.py: no step in the trace")
    if wanted is None:
        return steps[len(steps) // 2]
    if wanted not in steps:
        sys.exit(f"plot_trace.py: no step {wanted} in the trace, which holds {', '.join(map(str, steps))}")
    return wanted


def window_of(spans, step):
    """Begin and end of what is drawn. The launcher is ahead of the device: it does not count."""
    chosen = [s for s in spans if s[2] == step and s[0] != "launcher"]
    begin = min(s[3] for s in chosen)
    return begin, max(s[4] for s in chosen)


def kind_of(name):
    """The colour's key, and the short text of the target."""
    for kind in sorted(COLOURS, key=len, reverse=True):
        if name.startswith(kind):
            return kind, label_of(name[len(kind):].strip())
    return "other", ""


def label_of(target):
    short = re.sub(r"^layer (\d+)", r"\1", target)
    short = re.sub(r"^head chunk (\d+)", r"h\1", short)
    short = re.sub(r"^embedding chunk (\d+)", r"e\1", short)
    short = re.sub(r"^final norm", "n", short)
    short = re.sub(r"^of the batch's (other )?rows", r"\1rows", short)
    short = re.sub(r"^of the input", "input", short)
    return re.sub(r", piece (\d+)", r".\1", short)


def rectangle(x, y, width, height, fill, title):
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.6):.1f}" height="{height}" {fill} stroke="#fff" '
        f'stroke-width="0.4"><title>{escape(title)}</title></rect>'
    )


def text(x, y, content, extra=""):
    return f'<text x="{x:.1f}" y="{y}" {extra}>{escape(content)}</text>'


def draw_span(span, x, width, y, is_other):
    lane, name, step, begin, end = span
    kind, label = kind_of(name)
    inset = 6 if lane == "launcher" and kind == "wait" else 0
    title = f"step {step}: {name}, {(end - begin) / 1000:.3f} ms"
    fill = f'fill="{COLOURS.get(kind, OTHER)}"' + (' fill-opacity="0.4"' if is_other else "")
    parts = [rectangle(x, y + inset, width, ROW - 2 * inset, fill, title)]
    if kind == "launch step":
        label = f"launch step {step}"
    if label and len(label) * CHARACTER < width - 2 and inset == 0:
        parts.append(text(x + width / 2, y + ROW / 2 + 3.5, label, 'text-anchor="middle"'))
    return parts


def ticks(begin, end):
    """Round distances in ms, between 5 and 12 of them."""
    span = (end - begin) / 1000
    distance, factors = 0.001, [2, 2.5, 2]  # 1, 2, 5, 10
    while span / distance > 12:
        distance *= factors[0]
        factors = factors[1:] + factors[:1]
    return [i * distance for i in range(int(span / distance) + 1)]


def legend(kinds, y):
    parts, x = [], LEFT
    for kind in [k for k in COLOURS if k in kinds]:
        parts.append(rectangle(x, y, 12, 12, f'fill="{COLOURS[kind]}"', kind))
        parts.append(text(x + 16, y + 10, kind))
        x += 30 + len(kind) * CHARACTER
    return parts


def svg_of(spans, step, width):
    begin, end = window_of(spans, step)
    scale = (width - LEFT - RIGHT) / (end - begin)
    lanes = [lane for lane in LANES if any(s[0] == lane for s in spans)]
    bottom = TOP + len(lanes) * (ROW + GAP)
    height = bottom + 46
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for tick in ticks(begin, end):
        x = LEFT + tick * 1000 * scale
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#e6e6e6"/>')
        parts.append(text(x, TOP - 8, f"{tick:g} ms", 'text-anchor="middle" fill="#666"'))
    kinds = set()
    for row, lane in enumerate(lanes):
        y = TOP + row * (ROW + GAP)
        parts.append(text(8, y + ROW / 2 + 3.5, lane, 'font-weight="bold"'))
        for span in spans:
            first, last = max(span[3], begin), min(span[4], end)
            if span[0] != lane or last < first:
                continue
            kinds.add(kind_of(span[1])[0])
            parts += draw_span(span, LEFT + (first - begin) * scale, (last - first) * scale, y,
                               span[2] != step)
    parts += legend(kinds, bottom + 14)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def main():
    args = parse_args()
    spans = read_spans(args.trace)
    svg = svg_of(spans, choose_step(spans, args.step), args.width)
    with open(args.svg, "w", encoding="utf-8") as file:
        file.write(svg)


if __name__ == "__main__":
    main()
