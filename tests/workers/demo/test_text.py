"""The corpus: the same everywhere, held-out files apart, and a clear error where Python came without sources."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from weightcast.demo.text import TextError, load_corpus, prompt

_WORDS = b"import os\n\ndef answer():\n    return 42\n"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    root = tmp_path / "lib"
    for index in range(64):
        file = root / f"package{index % 4}" / f"module{index}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"# {index}\n".encode() + _WORDS * 150)
    return root


def test_the_real_library_is_enough_and_the_same_each_time() -> None:
    first, second = load_corpus(2_000_000), load_corpus(2_000_000)
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.held_out, second.held_out)
    assert len(first.train) + len(first.held_out) > 1_500_000
    assert len(first.train) <= 2_000_000
    assert 0.01 < len(first.held_out) / len(first.train) < 0.2


def test_order_does_not_depend_on_the_file_system(library: Path, tmp_path: Path) -> None:
    expected = load_corpus(roots=[library])
    other = tmp_path / "other"
    for file in sorted(library.rglob("*.py"), reverse=True):
        target = other / file.relative_to(library)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    assert torch.equal(load_corpus(roots=[other]).train, expected.train)


def test_sources_in_an_archive_are_read_alike(library: Path, tmp_path: Path) -> None:
    archive = tmp_path / "python311.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for file in library.rglob("*.py"):
            out.write(file, file.relative_to(library).as_posix())
    packed = load_corpus(roots=[archive])
    assert torch.equal(packed.train, load_corpus(roots=[library]).train)


def test_other_peoples_packages_tests_and_dangling_links_are_left_out(library: Path) -> None:
    expected = load_corpus(roots=[library])
    for name in ("site-packages/torch/x.py", "test/test_os.py", "json/tests/y.py", "notes.txt"):
        file = library / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_WORDS * 1000)
    (library / "dangling.py").symlink_to(library / "nowhere")
    assert torch.equal(load_corpus(roots=[library]).train, expected.train)


@pytest.mark.parametrize("roots", [[], ["missing"]])
def test_too_little_text_says_what_to_do(tmp_path: Path, roots: list[str]) -> None:
    with pytest.raises(TextError, match="installed with them"):
        load_corpus(roots=[tmp_path / root for root in roots])


def test_batches_are_a_function_of_seed_rank_and_step(library: Path) -> None:
    corpus = load_corpus(roots=[library])

    def batch(seed: int = 1, rank: int = 0, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        return corpus.batch(seed=seed, rank=rank, step=step, size=3, length=16)

    inputs, targets = batch()
    assert inputs.shape == targets.shape == (3, 16)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(batch()[0], inputs)
    for other in (batch(seed=2), batch(rank=1), batch(step=1)):
        assert not torch.equal(other[0], inputs)
    held_inputs, held_targets = corpus.held_out_batch(size=5, length=16)
    assert held_inputs.shape == (5, 16)
    assert torch.equal(held_inputs[:, 1:], held_targets[:, :-1])
    assert torch.equal(held_targets[-1], corpus.held_out[-17:][1:].long())


def test_prompts_are_tokens() -> None:
    assert bytes(prompt(0).tolist()) == b"\ndef "
    assert torch.equal(prompt(6), prompt(0))
    assert not torch.equal(prompt(1), prompt(0))
