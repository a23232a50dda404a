"""Curves as SVG: both axes logarithmic, so that what is linear is a straight line of slope one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

Point = tuple[float, float]
WIDTH, HEIGHT, EDGE = 300, 210, 46


def panel(title: str, x_name: str, points: Sequence[Point], at: tuple[int, int]) -> str:
    """One curve with its axes, at this place of the picture."""
    points = [(x, y) for x, y in points if x > 0 and y > 0]
    if not points:
        return ""
    left, right = math.log10(min(x for x, _ in points)), math.log10(max(x for x, _ in points))
    low, high = math.log10(min(y for _, y in points)), math.log10(max(y for _, y in points))
    # At least a decade upwards, so that what does not grow looks like it.
    middle, half = (low + high) / 2, max(1.0, high - low) / 2
    low, high = middle - half, middle + half
    right = max(right, left + 1e-9)

    def place(x: float, y: float) -> Point:
        across = EDGE + (math.log10(x) - left) / (right - left) * (WIDTH - 2 * EDGE)
        return at[0] + across, at[1] + HEIGHT - EDGE - (math.log10(y) - low) / (high - low) * (HEIGHT - 2 * EDGE)

    places = [place(x, y) for x, y in points]
    parts = [f'<text x="{at[0] + 8}" y="{at[1] + 20}" font-weight="bold">{title}</text>']
    path = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
    parts.append(f'<polyline points="{path}" fill="none" stroke="#1f5fa8" stroke-width="2"/>')
    for (x, y), (across, down) in zip(points, places, strict=True):
        parts.append(f'<circle cx="{across:.0f}" cy="{down:.0f}" r="3" fill="#1f5fa8"/>')
        parts.append(f'<text x="{across:.0f}" y="{down - 8:.0f}" text-anchor="middle">{short(y)}</text>')
        parts.append(f'<text x="{across:.0f}" y="{at[1] + HEIGHT - 26}" text-anchor="middle">{short(x)}</text>')
    parts.append(f'<text x="{at[0] + WIDTH / 2:.0f}" y="{at[1] + HEIGHT - 10}" text-anchor="middle">{x_name}</text>')
    return "\n".join(parts)


def short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def draw(file: Path, panels: Sequence[tuple[str, str, Sequence[Point]]], columns: int = 3) -> None:
    """Write them side by side."""
    rows = math.ceil(len(panels) / columns)
    size = f'width="{columns * WIDTH}" height="{rows * HEIGHT}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="10">']
    parts.append(f'<rect {size} fill="white"/>')
    for number, (title, x_name, points) in enumerate(panels):
        parts.append(panel(title, x_name, points, (number % columns * WIDTH, number // columns * HEIGHT)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*parts, "</svg>"]) + "\n")
