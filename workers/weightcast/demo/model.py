"""A small decoder-only transformer: RMSNorm, rotary positions, SwiGLU, one matrix for embedding and output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import nn

from weightcast.demo.text import VOCABULARY


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of the model; the defaults make about seven million parameters."""

    width: int = 384
    layers: int = 4
    heads: int = 6
    hidden: int = 1024
    context: int = 256
    vocabulary: int = VOCABULARY


class KeyValueCache:
    """Keys and values of the positions seen so far, for generating one token at a time."""

    def __init__(self, config: ModelConfig, batch: int) -> None:
        shape = (config.layers, 2, batch, config.heads, config.context, config.width // config.heads)
        self._memory = torch.zeros(shape)
        self.length = 0

    def extend(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the new positions of a layer and return all of them."""
        end = self.length + keys.shape[2]
        memory = self._memory[layer]
        memory[0, :, :, self.length : end] = keys
        memory[1, :, :, self.length : end] = values
        return memory[0, :, :, :end], memory[1, :, :, :end]


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], layer: int, cache: KeyValueCache | None
    ) -> torch.Tensor:
        """Mix the positions of ``x`` (batch, length, width) with those before them."""
        batch, length, width = x.shape
        projected: torch.Tensor = self.qkv(x)
        query, key, value = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = _rotate(query, rotation), _rotate(key, rotation)
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        # One new position may look at everything that is cached; several at once are the first of a sequence.
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """One layer: attention, then the gated feed-forward, each on a normalised copy and added back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.gate_up = nn.Linear(config.width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], layer: int, cache: KeyValueCache | None
    ) -> torch.Tensor:
        """Apply the layer to ``x`` (batch, length, width)."""
        x = x + self.attention(self.attention_norm(x), rotation, layer, cache)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        out: torch.Tensor = x + self.down(F.silu(gate) * up)
        return out


class Transformer(nn.Module):
    """The policy of the demo. Equal seeds give bit-identical weights."""

    def __init__(self, config: ModelConfig | None = None, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or ModelConfig()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        # Kept out of the module's buffers: it is a function of the configuration, not a weight to move.
        self._rotation = _rotation_table(config)
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        residual = 1 / math.sqrt(2 * self.config.layers)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 1:
                    weight.fill_(1)
                    continue
                deviation = 0.02 if name.startswith("embedding") else 1 / math.sqrt(weight.shape[1])
                if name.endswith(("attention.out.weight", "down.weight")):
                    deviation *= residual
                weight.normal_(0, deviation, generator=generator)

    def forward(self, tokens: torch.Tensor, cache: KeyValueCache | None = None) -> torch.Tensor:
        """Logits (batch, length, vocabulary) of the token after each of ``tokens`` (batch, length)."""
        start = 0 if cache is None else cache.length
        cosine, sine = self._rotation
        end = start + tokens.shape[1]
        rotation = cosine[start:end], sine[start:end]
        x = self.embedding(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, layer, cache)
        if cache is not None:
            cache.length = end
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy in nats a byte."""
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())


def _rotation_table(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    half = config.width // config.heads // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(config.context, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def parameter_count(model: nn.Module) -> int:
    """Number of trained values; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


@torch.inference_mode()
def sample(
    model: Transformer, prompt: torch.Tensor, count: int, generator: torch.Generator, *, temperature: float = 0.9
) -> torch.Tensor:
    """Continue ``prompt`` (one dimension, at least one token) by ``count`` tokens; equal generators give equal text."""
    if not 0 < len(prompt) <= model.config.context - count:
        raise ValueError(f"{len(prompt)} + {count} tokens do not fit a context of {model.config.context}")
    cache = KeyValueCache(model.config, batch=1)
    tokens = prompt[None].long()
    chosen = []
    for _ in range(count):
        logits = model(tokens, cache)[0, -1]
        tokens = torch.multinomial(F.softmax(logits / temperature, dim=-1), 1, generator=generator)[None]
        chosen.append(tokens[0])
    return torch.cat(chosen) if chosen else prompt[:0].long()


@torch.inference_mode()
def held_out_loss(model: Transformer, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Loss in nats a byte on text that no trainer sees."""
    return float(model.loss(*batch))


def printable(tokens: torch.Tensor) -> str:
    """Bytes as one line that is safe on any terminal."""
    return "".join(chr(byte) if 32 <= byte < 127 else "⏎" if byte == 10 else "·" for byte in tokens.tolist())
