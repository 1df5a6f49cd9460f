"""Real text that every machine with Python has: the sources of the standard library, as byte tokens."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

VOCABULARY = 256
"""Tokens are bytes."""

_HELD_OUT_SHARE = 16
_MINIMUM_BYTES = 200_000
_PROMPTS = (b"\ndef ", b"\nclass ", b"\nimport ", b"\n    if self.", b"\n    return ", b"\n# The ")
# Third-party packages differ between machines, and distributions strip the tests or ship them apart.
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"})


class TextError(RuntimeError):
    """This Python brings too little source text to train on."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Byte tokens for training and, from other files, for measuring the held-out loss."""

    train: torch.Tensor
    held_out: torch.Tensor

    def batch(self, *, seed: int, rank: int, step: int, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of one step: the same for the same arguments, different for another rank or step."""
        key = hashlib.sha256(f"{seed}/{rank}/{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "big"))
        starts = torch.randint(len(self.train) - length, (size,), generator=generator)
        return _windows(self.train, starts, length)

    def held_out_batch(self, *, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets spread evenly over the held-out files; always the same ones."""
        starts = torch.linspace(0, len(self.held_out) - length - 1, size, dtype=torch.float64).long()
        return _windows(self.held_out, starts, length)


def prompt(index: int) -> torch.Tensor:
    """The beginning of something that a model of Python sources can go on with."""
    return _tokens(bytearray(_PROMPTS[index % len(_PROMPTS)])).long()


def _windows(tokens: torch.Tensor, starts: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    window = tokens[starts[:, None] + torch.arange(length + 1)].long()
    return window[:, :-1], window[:, 1:]


def load_corpus(max_bytes: int = 8_000_000, roots: list[Path] | None = None) -> Corpus:
    """Read at most ``max_bytes`` of sources; whole files of about a sixteenth of that are held out.

    Files are taken in the order of a hash of their path, so that a bounded corpus is a fair sample of the library and
    the same on every process of one installation.
    """
    roots = _library_roots() if roots is None else roots
    sources = {path: text for root in roots for path, text in _sources(root)}
    train, held_out = bytearray(), bytearray()
    for path in sorted(sources, key=_path_hash):
        if len(train) + len(held_out) >= max_bytes:
            break
        (held_out if len(held_out) * _HELD_OUT_SHARE <= len(train) else train).extend(sources[path])
    if len(train) < _MINIMUM_BYTES or len(held_out) < _MINIMUM_BYTES // _HELD_OUT_SHARE:
        raise TextError(
            "the demo trains on the standard library's .py sources: use a Python that was installed with them "
            f"(found {len(train) + len(held_out):,} bytes in {', '.join(map(str, roots)) or 'no directory'})"
        )
    return Corpus(_tokens(train[:max_bytes]), _tokens(held_out[:max_bytes]))


def _library_roots() -> list[Path]:
    """Where the library lives: its directory, and the archive from which embedded distributions import."""
    candidates = [Path(sysconfig.get_path("stdlib"))]
    candidates += [Path(entry) for entry in sys.path if entry.endswith(".zip") and "python" in Path(entry).name]
    return [path for path in candidates if path.exists()]


def _sources(root: Path) -> Iterator[tuple[str, bytes]]:
    if root.is_file():
        with zipfile.ZipFile(root) as archive:
            for name in archive.namelist():
                if _wanted(name):
                    yield name, archive.read(name)
        return
    for file in root.rglob("*.py"):
        name = file.relative_to(root).as_posix()
        if _wanted(name):
            try:
                yield name, file.read_bytes()
            except OSError:
                continue  # A dangling link or an unreadable file of a distribution is not worth failing for.


def _wanted(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".py" and _LEFT_OUT.isdisjoint(path.parts)


def _path_hash(path: str) -> bytes:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()


def _tokens(text: bytearray) -> torch.Tensor:
    return torch.frombuffer(text, dtype=torch.uint8)
