"""Draws the result of `weightcast bench wire --json`: `python benchmarks/plot_wire.py wire.json wire.svg`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "weightcast"  # equal input, equal file

from matplotlib import pyplot as plt  # noqa: E402 - the backend is chosen first

BARS = [
    ("memcpy, one thread", "copy_gbps", "#9aa5b1"),
    ("process_vm_readv", "cma_gbps", "#9aa5b1"),
    ("one raw NIXL READ", "raw_nixl_gbps", "#5b8def"),
    ("refit: READY → staged, verified", "engine_gbps", "#1f9d55"),
    ("publish (copy + digests)", "publish_gbps", "#d9902f"),
    ("apply (the pause)", "apply_gbps", "#d9902f"),
]


def main(source: Path, target: Path) -> None:
    """Read the JSON, write the picture."""
    result: dict[str, Any] = json.loads(source.read_text())
    bars = [(label, result[key], color) for label, key, color in BARS if result[key] is not None][::-1]
    figure, axes = plt.subplots(figsize=(7.5, 2.9), layout="constrained")
    drawn = axes.barh([label for label, _, _ in bars], [value for _, value, _ in bars], color=[c for *_, c in bars])
    axes.bar_label(drawn, fmt="%.1f", padding=3)
    axes.set_xlabel("10⁹ bytes a second")
    axes.spines[["top", "right"]].set_visible(False)
    gib = result["nbytes"] / 2**30
    axes.set_title(f"{gib:.0f} GiB in {result['tensors']} tensors, {result['machine']}", fontsize=10)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
