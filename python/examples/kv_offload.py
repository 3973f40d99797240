"""A language model whose KV cache is larger than the memory for it: idle conversations wait on the
host.

The model is a small transformer with random weights and a paged cache: each layer has a pool of
slots for keys and one for values, and a conversation owns pages of slots. The pools hold two
conversations. When a third one goes on, the pages of the one that was idle longest are copied to
page-first pools in host memory (`transfer_kv_all_layer_lf_pf`, one call for all layers). When that
conversation goes on, each layer brings back its part before it attends to it
(`transfer_kv_per_layer_pf_lf`). The example checks that the model's output is the same, bit for
bit, as with pools that hold all conversations.

The functions are those of SGLang's `sgl_kernel.kvcacheio`. Here both pools are CPU memory, unless
`--device cuda` puts the model and its pools on a GPU and pins the host's; that has not yet been
run.

    pip install './python[torch]'                # this example needs PyTorch
    python python/examples/kv_offload.py
"""

import argparse
import math
import time
from dataclasses import dataclass, field

from forerun.kvcacheio import transfer_kv_all_layer_lf_pf, transfer_kv_per_layer_pf_lf

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
except ModuleNotFoundError as missing:
    raise SystemExit(f"this example needs PyTorch ({missing}): pip install torch") from None

PAGE = 16  # tokens per page
LAYERS = 6
HEADS, KV_HEADS, HEAD_DIM = 8, 4, 32
WIDTH = HEADS * HEAD_DIM
VOCABULARY = 256  # bytes


@dataclass
class Conversation:
    """Its length, and where the cache of its tokens is: in the model's pools or on the host."""

    tokens: int = 0
    pages: list[int] = field(default_factory=list)
    host_pages: list[int] = field(default_factory=list)
    last_used: int = 0


@dataclass
class Moved:
    """What was copied in one direction."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = self.bytes / self.seconds / 2**30 if self.seconds else 0.0
        return (
            f"{self.bytes / 2**20:7.1f} MiB in {self.calls:4} calls, "
            f"{self.seconds * 1e3:7.1f} ms, {rate:5.2f} GiB/s"
        )


class PagedCache:
    """Keys and values in pools of pages, and pools on the host for what does not fit."""

    def __init__(self, pages: int, host_pages: int, device: str) -> None:
        shape = (pages * PAGE, KV_HEADS, HEAD_DIM)
        self.device = device
        # Not a number: a row that is used before it is copied would show in the output.
        self.k = [torch.full(shape, math.nan, device=device) for _ in range(LAYERS)]
        self.v = [torch.full(shape, math.nan, device=device) for _ in range(LAYERS)]
        host = (host_pages * PAGE, LAYERS, KV_HEADS, HEAD_DIM)
        pin = device != "cpu"
        self.host_k = torch.full(host, math.nan, pin_memory=pin)
        self.host_v = torch.full(host, math.nan, pin_memory=pin)
        self.free = list(range(pages))
        self.host_free = list(range(host_pages))
        self.conversations: list[Conversation] = []
        self.steps = 0
        self.out, self.back = Moved(), Moved()
        self.item_bytes = KV_HEADS * HEAD_DIM * self.host_k.element_size()

    def slots(self, pages: list[int]) -> Tensor:
        first = torch.tensor(pages, device=self.device).unsqueeze(1) * PAGE
        slots: Tensor = first + torch.arange(PAGE, device=self.device)
        return slots.flatten()

    def begin(self, conversation: Conversation, new_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Makes room for a step: the slots of all tokens, and the rows that each layer must bring
        back with their slots."""
        self.steps += 1
        conversation.last_used = self.steps
        if conversation not in self.conversations:
            self.conversations.append(conversation)
        needed = -(-(conversation.tokens + new_tokens) // PAGE)
        while len(self.free) < needed - len(conversation.pages):
            self.offload(conversation)
        while len(conversation.pages) < needed:
            conversation.pages.append(self.free.pop())
        conversation.tokens += new_tokens
        rows = self.slots(conversation.host_pages)
        slots = self.slots(conversation.pages)
        self.host_free += conversation.host_pages
        conversation.host_pages = []
        return slots[: conversation.tokens], rows, slots[: len(rows)]

    def offload(self, but: Conversation) -> None:
        """Copies the conversation that was idle longest to the host."""
        idle = [each for each in self.conversations if each is not but and each.pages]
        victim = min(idle, key=lambda each: each.last_used)
        victim.host_pages = [self.host_free.pop() for _ in victim.pages]
        rows, slots = self.slots(victim.host_pages), self.slots(victim.pages)
        begin = time.perf_counter()
        transfer_kv_all_layer_lf_pf(
            self.k,
            self.host_k,
            self.v,
            self.host_v,
            src_indices=slots,
            dst_indices=rows,
            item_size=self.item_bytes,
            dst_layout_dim=LAYERS * self.item_bytes,
            num_layers=LAYERS,
        )
        self.count(self.out, begin, len(rows) * LAYERS)
        self.free += victim.pages
        victim.pages = []

    def bring_back(self, layer: int, rows: Tensor, slots: Tensor) -> None:
        """Copies these rows of one layer from the host."""
        if len(rows) == 0:
            return
        begin = time.perf_counter()
        transfer_kv_per_layer_pf_lf(
            self.host_k,
            self.k[layer],
            self.host_v,
            self.v[layer],
            src_indices=rows,
            dst_indices=slots,
            layer_id=layer,
            item_size=self.item_bytes,
            src_layout_dim=LAYERS * self.item_bytes,
        )
        self.count(self.back, begin, len(rows))

    def count(self, moved: Moved, begin: float, rows: int) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()  # for the time alone: the copies are in stream order
        moved.seconds += time.perf_counter() - begin
        moved.calls += 1
        moved.bytes += 2 * rows * self.item_bytes


class Model:
    """A transformer with grouped-query attention."""

    def __init__(self, device: str) -> None:
        random = torch.Generator().manual_seed(1)

        def weights(*shape: int) -> Tensor:
            return (torch.randn(shape, generator=random) / math.sqrt(shape[-1])).to(device)

        self.device = device
        self.embedding = weights(VOCABULARY, WIDTH)
        kv = KV_HEADS * HEAD_DIM
        self.qkv = [weights(WIDTH + 2 * kv, WIDTH) for _ in range(LAYERS)]
        self.output = [weights(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.up = [weights(2 * WIDTH, WIDTH) for _ in range(LAYERS)]
        self.down = [weights(WIDTH, 2 * WIDTH) for _ in range(LAYERS)]

    def step(self, cache: PagedCache, conversation: Conversation, tokens: Tensor) -> Tensor:
        """Appends tokens to a conversation and returns the logits of the last one."""
        slots, rows, brought = cache.begin(conversation, len(tokens))
        x = self.embedding[tokens]
        position = torch.arange(len(slots), device=self.device)
        mask = position.unsqueeze(0) <= position[-len(tokens) :].unsqueeze(1)
        for layer in range(LAYERS):
            cache.bring_back(layer, rows, brought)
            normal = functional.rms_norm(x, (WIDTH,))
            kv = KV_HEADS * HEAD_DIM
            q, k, v = torch.split(normal @ self.qkv[layer].T, [WIDTH, kv, kv], dim=-1)
            cache.k[layer][slots[-len(tokens) :]] = k.view(-1, KV_HEADS, HEAD_DIM)
            cache.v[layer][slots[-len(tokens) :]] = v.view(-1, KV_HEADS, HEAD_DIM)
            attended = functional.scaled_dot_product_attention(
                q.view(-1, HEADS, HEAD_DIM).transpose(0, 1),
                cache.k[layer][slots].transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0),
                cache.v[layer][slots].transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0),
                attn_mask=mask,
            )
            x = x + attended.transpose(0, 1).reshape(-1, WIDTH) @ self.output[layer].T
            hidden = functional.silu(functional.rms_norm(x, (WIDTH,)) @ self.up[layer].T)
            x = x + hidden @ self.down[layer].T
        logits: Tensor = functional.rms_norm(x[-1], (WIDTH,)) @ self.embedding.T
        return logits


def talk(model: Model, cache: PagedCache, count: int, turns: int, prompt: int) -> list[Tensor]:
    """The logits of every step: in each turn, every conversation gets a prompt and is answered."""
    conversations = [Conversation() for _ in range(count)]
    random = torch.Generator().manual_seed(2)
    logits: list[Tensor] = []
    for _ in range(turns):
        for conversation in conversations:
            tokens = torch.randint(0, VOCABULARY, (prompt,), generator=random).to(model.device)
            for _ in range(4):
                last = model.step(cache, conversation, tokens)
                logits.append(last)
                tokens = last.argmax().unsqueeze(0)
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3, help="turns of each conversation")
    parser.add_argument("--prompt", type=int, default=150, help="tokens per turn")
    parser.add_argument("--device", default="cpu", help="where the model is: cpu or cuda")
    arguments = parser.parse_args()
    if min(arguments.conversations, arguments.turns, arguments.prompt) < 1:
        parser.error("conversations, turns and tokens are at least 1")

    # The pages of a conversation at its end.
    pages = -(-arguments.turns * (arguments.prompt + 3) // PAGE)
    model = Model(arguments.device)
    run = (arguments.conversations, arguments.turns, arguments.prompt)
    with torch.inference_mode():
        small = PagedCache(2 * pages, arguments.conversations * pages, arguments.device)
        logits = talk(model, small, *run)
        large = PagedCache(arguments.conversations * pages, 1, arguments.device)
        expected = talk(model, large, *run)

    same = all(torch.equal(one, other) for one, other in zip(logits, expected, strict=True))
    item = small.item_bytes
    print(
        f"{arguments.conversations} conversations of {pages * PAGE} tokens in {LAYERS} layers; the "
        f"pools hold 2 of them, {2 * 2 * pages * PAGE * LAYERS * item / 2**20:.1f} MiB"
    )
    print(f"to the host:   {small.out}")
    print(f"from the host: {small.back}")
    print(f"kept in place by pools that hold all: {large.out.calls + large.back.calls} copies")
    if not same:
        raise SystemExit("the logits differ from those with pools that hold all conversations")
    print(f"the logits of all {len(logits)} steps are the same as with pools that hold all")


if __name__ == "__main__":
    main()
