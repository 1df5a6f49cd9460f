"""Layouts of real tensors, their wire form, and what a broken one is answered with."""

from __future__ import annotations

import msgspec
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights import flat_bytes
from weightcast.contract.layout import (
    DTYPE_NBYTES,
    MAX_LAYOUT_NBYTES,
    Layout,
    LayoutError,
    TensorSpec,
    canonical,
    check_layout,
    layout_digest,
    pack_layout,
    unpack_layout,
)
from weightcast.errors import LayoutMismatch
from weightcast.layout import build_layout, check_stable, compare, dtype_name, named_tensors, typed_view

DTYPES = [getattr(torch, name) for name in DTYPE_NBYTES if name not in {"complex32", "float4_e2m1fn_x2"}]
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=20)


@st.composite
def weights(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    names = draw(st.lists(NAMES, unique=True, max_size=12))
    found: dict[str, torch.Tensor] = {}
    for name in names:
        kind = draw(st.sampled_from(["plain", "transposed", "strided", "tied"]))
        if kind == "tied" and found:
            found[name] = found[draw(st.sampled_from(sorted(found)))]
            continue
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(SHAPES)
        size = torch.empty((), dtype=dtype).element_size()
        count = int(torch.Size(shape).numel())
        raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count * size,), dtype=torch.uint8)
        tensor = raw.view(dtype).reshape(shape)
        if kind == "transposed" and len(shape) >= 2:
            tensor = tensor.transpose(0, 1)
        elif kind == "strided" and shape and shape[0] > 1:
            tensor = tensor[::2]
        found[name] = tensor
    return found


@given(weights())
@settings(deadline=None, max_examples=150)
def test_a_layout_is_valid_travels_and_gives_the_bytes_back(tensors: dict[str, torch.Tensor]) -> None:
    layout = build_layout(tensors)
    check_layout(layout)
    assert unpack_layout(pack_layout(layout), layout_digest(layout)) == layout
    data = torch.zeros(layout.nbytes, dtype=torch.uint8)
    for spec in layout.tensors:
        data[spec.offset : spec.offset + spec.nbytes] = flat_bytes(tensors[spec.name])
    assert {spec.name for spec in layout.tensors} == tensors.keys()
    for spec in layout.tensors:
        view, tensor = typed_view(data, spec), tensors[spec.name]
        assert (view.shape, view.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(flat_bytes(view), flat_bytes(tensor))


@given(weights(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_the_digest_does_not_depend_on_the_order_of_the_mapping(
    tensors: dict[str, torch.Tensor], random: object
) -> None:
    shuffled = list(tensors.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert layout_digest(build_layout(dict(shuffled))) == layout_digest(build_layout(tensors))


def test_tied_tensors_share_their_bytes_and_others_do_not() -> None:
    weight = torch.randn(4, 4)
    layout = build_layout({"embed": weight, "head": weight, "transposed": weight.t(), "other": weight.clone()})
    offsets = {spec.name: spec.offset for spec in layout.tensors}
    assert offsets["embed"] == offsets["head"]
    assert len({offsets["embed"], offsets["transposed"], offsets["other"]}) == 3


def test_everything_that_cannot_be_published_is_listed() -> None:
    with pytest.raises(LayoutError) as caught:
        build_layout(
            {
                "meta": torch.empty(3, device="meta"),
                "sparse": torch.eye(3).to_sparse(),
                "good": torch.ones(1),
                "new\nline": torch.ones(1),
            }
        )
    assert len(caught.value.errors) == 3
    with pytest.raises(LayoutError, match="'list' is a list, not a tensor"):
        named_tensors({"list": [1, 2]})  # type: ignore[dict-item]


def test_a_module_gives_its_state_with_buffers_and_without_gradients() -> None:
    module = torch.nn.BatchNorm1d(3)
    tensors = named_tensors(module)
    assert {"weight", "running_mean", "num_batches_tracked"} <= tensors.keys()
    assert not any(tensor.requires_grad for tensor in tensors.values())
    assert tensors["weight"].data_ptr() == module.weight.data_ptr()


def test_every_difference_is_in_one_error() -> None:
    specs = {spec.name: spec for spec in build_layout({n: torch.zeros(2, 3) for n in "abcd"}).tensors}
    live = {
        "a": torch.zeros(3, 2),
        "b": torch.zeros(2, 3, dtype=torch.float16),
        "c": torch.zeros(2, 3),
        "extra": torch.zeros(1),
    }
    with pytest.raises(LayoutMismatch) as caught:
        compare(specs, live, 7)
    listed = "\n".join(caught.value.differences)
    assert len(caught.value.differences) == 4
    for fact in ("'a'", "[3, 2]", "float16", "'d'", "'extra'"):
        assert fact in listed
    assert "'c'" not in listed


def _encode(layout: object) -> bytes:
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(layout))


GOOD = Layout(1, 128, (TensorSpec("a", "float32", (4,), 0), TensorSpec("b", "int8", (3,), 64)))


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        (Layout(2, 0, ()), "format 2"),
        (Layout(1, -1, ()), "nbytes"),
        (Layout(1, 2**60, ()), "nbytes"),
        (Layout(1, 8, (TensorSpec("a", "float32", (4,), 0),)), "past 8"),
        (Layout(1, 64, (TensorSpec("a", "float32", (4,), 2),)), "aligned"),
        (Layout(1, 64, (TensorSpec("a", "float33", (4,), 0),)), "unknown dtype"),
        (Layout(1, 64, (TensorSpec("", "int8", (4,), 0),)), "name"),
        (Layout(1, 64, (TensorSpec("x\x00", "int8", (4,), 0),)), "name"),
        (Layout(1, 64, (TensorSpec("a", "int8", (-4,), 0),)), "impossible shape"),
        (Layout(1, 64, (TensorSpec("a", "int8", (2**40, 2**40), 0),)), "impossible size"),
        (Layout(1, 64, (TensorSpec("a", "int8", (1,) * 17, 0),)), "not a layout"),
        (Layout(1, 64, (TensorSpec("a", "int8", (1,), -1),)), "impossible size"),
        (Layout(1, 64, (TensorSpec("a", "int8", (9,), 0), TensorSpec("b", "int8", (9,), 8))), "overlaps"),
        (Layout(1, 64, (TensorSpec("a", "int8", (9,), 0), TensorSpec("b", "uint8", (9,), 0))), "overlaps"),
        (Layout(1, 64, (TensorSpec("a", "int8", (1,), 0), TensorSpec("a", "int8", (1,), 8))), "twice"),
        (Layout(1, 64, (TensorSpec("b", "int8", (1,), 8), TensorSpec("a", "int8", (1,), 0))), "out of order"),
    ],
)
def test_an_impossible_layout_is_refused(layout: Layout, complaint: str) -> None:
    with pytest.raises(LayoutError, match=complaint):
        unpack_layout(_encode(layout))


@given(st.binary(max_size=200))
def test_garbage_is_refused(blob: bytes) -> None:
    with pytest.raises(LayoutError):
        unpack_layout(blob)
    with pytest.raises(LayoutError):
        unpack_layout(zstandard.ZstdCompressor().compress(blob))


def test_size_form_and_digest_are_checked() -> None:
    assert unpack_layout(pack_layout(GOOD), layout_digest(GOOD)) == GOOD
    with pytest.raises(LayoutError, match="has digest"):
        unpack_layout(pack_layout(GOOD), "0" * 64)
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_LAYOUT_NBYTES + 1))
    with pytest.raises(LayoutError, match="decompressed size"):
        unpack_layout(bomb)
    # The same content as maps instead of arrays, and with trailing bytes: not canonical.
    with pytest.raises(LayoutError):
        unpack_layout(zstandard.ZstdCompressor().compress(canonical(GOOD) + b"\x00"))
    assert dtype_name(torch.bfloat16) == "bfloat16"


def test_copies_are_not_taken_for_live_weights() -> None:
    module = torch.nn.Linear(2, 2)
    check_stable(named_tensors(module), named_tensors(module))
    module.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
        lambda _module, state, prefix, _metadata: state.update({"weight": state["weight"].clone()})
    )
    first, second = named_tensors(module), named_tensors(module)
    with pytest.raises(LayoutError, match="'weight' is a copy"):
        check_stable(first, second)


def test_tensor_subclasses_are_refused() -> None:
    class Wrapped(torch.Tensor):
        pass

    with pytest.raises(LayoutError, match="'w' is a Wrapped"):
        build_layout({"w": torch.ones(2).as_subclass(Wrapped)})


def test_small_uploads_that_unpack_to_very_much_are_refused_while_they_are_decoded() -> None:
    spec = ("a", "int8", (1,), 0)
    for layout in ((1, 64, (spec,) * 300_000), (1, 64, (("a", "int8", (1,) * 1_000_000, 0),))):
        blob = _encode(layout)
        assert len(blob) < 10_000
        with pytest.raises(LayoutError, match="not a layout"):
            unpack_layout(blob)
    with pytest.raises(LayoutError):
        unpack_layout(pack_layout(GOOD) + b"more")
