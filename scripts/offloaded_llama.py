# SPDX-License-Identifier: Apache-2.0
"""Llama in PyTorch whose layers live in host memory and visit the device one by one; compare_offload.py measures it.

Streams: the current one computes, `Lane`s copy. An event stands behind every hand-over. A design says what overlaps:
"overlapped" copies both ways at once and runs AdamW on a thread beside the next forward pass, so that the host waits
for nothing but the AdamW of the layer whose weights it is about to send; "original" has one side stream for both ways
and runs AdamW on the launching thread, once the backward pass is launched.
"""
import concurrent.futures
import contextlib
import functools
import statistics
import time

import torch
from torch.nn import functional

LAYER_PARAMETERS = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)


def layer_shapes(config):
    """In the order of LAYER_PARAMETERS."""
    width, ffn_width = config.hidden_size, config.intermediate_size
    q_width, kv_width = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    return [(width,), (q_width, width), (kv_width, width), (kv_width, width), (width, q_width),
            (width,), (ffn_width, width), (ffn_width, width), (width, ffn_width)]


def views(flat, shapes):
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes)]


def rms_norm(x, weight, eps):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x, cos, sin):
    """x: (B, heads, T, D); cos, sin: (T, D)"""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def layer_forward(head_dim, eps, x, cos, sin, *weights):
    """x: (B, T, C)"""
    norm_1, q_weight, k_weight, v_weight, o_weight, norm_2, gate, up, down = weights

    def heads(y):
        return y.unflatten(-1, (-1, head_dim)).transpose(1, 2)

    y = rms_norm(x, norm_1, eps)
    q, k, v = (heads(functional.linear(y, weight)) for weight in (q_weight, k_weight, v_weight))
    attended = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True,
                                                       enable_gqa=q.shape[1] != k.shape[1])
    x = x + functional.linear(attended.transpose(1, 2).flatten(2), o_weight)
    y = rms_norm(x, norm_2, eps)
    return x + functional.linear(functional.silu(functional.linear(y, gate)) * functional.linear(y, up), down)


def head_loss(eps, x, norm, weight, targets):
    logits = functional.linear(rms_norm(x, norm, eps), weight)
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def event_of(stream):
    event = torch.cuda.Event()
    event.record(stream)
    return event


class Lane:
    """A stream for copies. On a CPU copies happen at once, and events are None."""

    def __init__(self, device):
        self.stream = torch.cuda.Stream() if device == "cuda" else None

    def copy(self, to, source):
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            to.copy_(source, non_blocking=True)
            if self.stream and source.is_cuda:
                source.record_stream(self.stream)  # its memory is not taken again before the copy is done

    def wait(self, event):
        if event:
            self.stream.wait_event(event)

    def mark(self):
        return event_of(self.stream) if self.stream else None


class Compute:
    """The current stream, with a Lane's events."""

    def __init__(self, device):
        self.on_gpu = device == "cuda"

    def wait(self, event):
        if event:
            torch.cuda.current_stream().wait_event(event)

    def mark(self):
        return event_of(torch.cuda.current_stream()) if self.on_gpu else None


class HostLayer:
    """Flat weights and gradients, pinned where there is a GPU."""

    def __init__(self, shapes, dtype, initializer_range, device):
        n = sum(torch.Size(shape).numel() for shape in shapes)
        pinned = device == "cuda"
        self.weights = torch.empty(n, dtype=dtype, pin_memory=pinned)
        self.gradients = torch.zeros(n, dtype=dtype, pin_memory=pinned)
        first = torch.empty(n, dtype=dtype, device=device).normal_(0, initializer_range)
        for view in views(first, shapes):
            if view.dim() == 1:
                view.fill_(1)
        self.weights.copy_(first)
        self.weight_views, self.gradient_views = views(self.weights, shapes), views(self.gradients, shapes)
        self.weights.grad = self.gradients


class LayerUpdates:
    """AdamW over host layers in the order of submit(): on a thread of its own, or in run_submitted()."""

    def __init__(self, layers, lr, threads, own_thread):
        self.thread = None
        if own_thread:
            self.thread = concurrent.futures.ThreadPoolExecutor(1, initializer=torch.set_num_threads,
                                                                initargs=(threads,))
        else:
            torch.set_num_threads(threads)
        self.submitted = []  # not yet run, without a thread
        self.pending = [None] * len(layers)
        self.kind, self.optimizers, self.busy_s = "fused", [], []
        for layer in layers:
            try:
                optimizer = torch.optim.AdamW([layer.weights], lr=lr, weight_decay=0, fused=True)
            except RuntimeError:  # a PyTorch that fuses on GPUs alone
                optimizer = torch.optim.AdamW([layer.weights], lr=lr, weight_decay=0, foreach=True)
                self.kind = "foreach"
            self.optimizers.append(optimizer)

    def submit(self, index, arrived):
        if self.thread:
            self.pending[index] = self.thread.submit(self.update, index, arrived)
        else:
            self.submitted.append((index, arrived))

    def run_submitted(self):
        for index, arrived in self.submitted:
            self.update(index, arrived)
        self.submitted.clear()

    def update(self, index, arrived):
        if arrived:
            arrived.synchronize()
        begin = time.perf_counter()
        self.optimizers[index].step()
        if index == len(self.optimizers) - 1:  # the first of a step
            self.busy_s.append(0)
        self.busy_s[-1] += time.perf_counter() - begin

    def wait(self, index):
        """Until the weights are those of the next step."""
        if self.pending[index]:
            self.pending[index].result()
            self.pending[index] = None

    def busy_ms(self):
        """Median of the steps."""
        return statistics.median(self.busy_s) * 1e3


class DeviceSlots:
    """Two buffers for layers: one computes, the other is filled."""

    def __init__(self, layers, shapes, updates, device):
        self.layers, self.updates = layers, updates
        self.compute, self.lane = Compute(device), Lane(device)
        self.flats = [torch.empty_like(layers[0].weights, device=device, pin_memory=False) for _ in range(2)]
        self.weights = [[view.detach().requires_grad_() for view in views(flat, shapes)] for flat in self.flats]
        self.held, self.filled, self.used = [None, None], [None, None], [None, None]
        self.current = 0

    def forget(self):
        """What the buffers hold is of an earlier step."""
        self.held = [None, None]

    def prefetch(self, index):
        """Into the buffer that does not compute, after what it computed last."""
        other = 1 - self.current
        if not 0 <= index < len(self.layers) or index in self.held:
            return
        self.updates.wait(index)
        self.lane.wait(self.used[other])
        self.lane.copy(self.flats[other], self.layers[index].weights)
        self.held[other], self.filled[other] = index, self.lane.mark()

    def acquire(self, index):
        """The layer's weights, for work on the current stream until release()."""
        if index not in self.held:
            self.prefetch(index)
        self.current = self.held.index(index)
        self.compute.wait(self.filled[self.current])
        return self.weights[self.current]

    def release(self):
        self.used[self.current] = self.compute.mark()


class OffloadedLlama:
    """A randomly initialized Llama and its optimizer. `fields` are those of a Hugging Face config.json; `design` is
    "overlapped" or "original"."""

    def __init__(self, fields, dtype, seq_len, lr, compiled, threads, device="cuda", design="overlapped"):
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        config = LlamaConfig.from_dict(fields)
        shapes, spread = layer_shapes(config), config.initializer_range
        self.layers = [HostLayer(shapes, dtype, spread, device) for _ in range(config.num_hidden_layers)]
        self.updates = LayerUpdates(self.layers, lr, threads, design == "overlapped")
        self.slots = DeviceSlots(self.layers, shapes, self.updates, device)
        self.to_host = Lane(device) if design == "overlapped" else self.slots.lane

        def matrix():
            return torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device).normal_(0, spread)

        self.embedding = matrix().requires_grad_()
        self.head = self.embedding if config.tie_word_embeddings else matrix().requires_grad_()
        self.norm = torch.ones(config.hidden_size, dtype=dtype, device=device, requires_grad=True)
        resident = [self.embedding, self.norm] + ([] if self.head is self.embedding else [self.head])
        self.optimizer = torch.optim.AdamW(resident, lr=lr, weight_decay=0, fused=True)

        positions = torch.arange(seq_len, device=device)[None]
        cos_sin = LlamaRotaryEmbedding(config).to(device)(self.embedding.detach(), positions)
        self.cos_sin = [table[0] for table in cos_sin]  # (T, D) each
        self.layer_forward = functools.partial(layer_forward, config.head_dim, config.rms_norm_eps)
        self.head_loss = functools.partial(head_loss, config.rms_norm_eps)
        if compiled:
            self.layer_forward = torch.compile(self.layer_forward, dynamic=False)
            self.head_loss = torch.compile(self.head_loss, dynamic=False)

    def state_dict(self):
        """Copies, under transformers' names."""
        named = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm,
                 "lm_head.weight": self.head}
        for index, layer in enumerate(self.layers):
            for name, view in zip(LAYER_PARAMETERS, layer.weight_views):
                named[f"model.layers.{index}.{name}.weight"] = view
        return {name: weight.detach().clone() for name, weight in named.items()}

    def train_step(self, ids, targets):
        """The loss, on the device. Returns before the step is done; the original design has run AdamW of the layers."""
        self.slots.forget()
        embedded = functional.embedding(ids, self.embedding)
        inputs = self.forward(embedded.detach())
        last = inputs.pop().requires_grad_()
        loss = self.head_loss(last, self.norm, self.head, targets)
        loss.backward()
        embedded.backward(self.backward(inputs, last.grad))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates.run_submitted()
        return loss.detach()

    @torch.no_grad()
    def forward(self, x):
        """The input of each layer, and the output of the last."""
        inputs = [x]
        for index in range(len(self.layers)):
            weights = self.slots.acquire(index)
            self.slots.prefetch(index + 1)
            inputs.append(self.layer_forward(inputs[-1], *self.cos_sin, *weights))
            self.slots.release()
        return inputs

    def backward(self, inputs, d_x):
        for index in reversed(range(len(self.layers))):
            weights = self.slots.acquire(index)
            self.slots.prefetch(index - 1)
            x = inputs.pop().requires_grad_()
            y = self.layer_forward(x, *self.cos_sin, *weights)
            d_x, *d_weights = torch.autograd.grad(y, [x, *weights], d_x)
            self.slots.release()
            self.to_host.wait(self.slots.used[self.slots.current])
            for host, gradient in zip(self.layers[index].gradient_views, d_weights):
                self.to_host.copy(host, gradient)
            self.updates.submit(index, self.to_host.mark())
        return d_x

    def finish(self):
        """Waits for every update."""
        for index in range(len(self.layers)):
            self.updates.wait(index)
