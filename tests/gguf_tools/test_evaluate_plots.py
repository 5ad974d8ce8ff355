"""Plots: every point is inside, in order, and says what it is."""

import re

from llama_octet.gguf_tools.evaluate import plots


def test_lines_run_from_left_to_right_and_down_with_the_value():
    svg = plots.lines({"a<b": [(0, 1e-3), (5, 1e-4), (10, 0)]}, "tokens", "KL")
    (line,) = re.findall(r'polyline points="([^"]+)"', svg)
    points = [tuple(map(float, p.split(","))) for p in line.split()]
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert points[0][1] < points[1][1] < points[2][1]
    width, height = map(float, re.findall(r'<svg width="(\d+)" height="(\d+)"', svg)[0])
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    assert "a&lt;b" in svg and "a<b" not in svg


def test_dots_say_what_they_are():
    svg = plots.dots({"one": [(1, 0.5, "blk.0 & co")], "two": [(1, 0.05, "x")]}, "n", "error")
    assert svg.count("<circle") == 2
    assert "blk.0 &amp; co: 0.5" in svg
    assert "Nothing" in plots.dots({}, "n", "error")
