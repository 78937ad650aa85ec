// SPDX-License-Identifier: Apache-2.0
// Shapes and layouts are those of a training step: q, k, v in one buffer, gate and up in another.
#include "backend/op_bench_cases.h"

#include <fmt/core.h>

namespace ferry {
namespace {

using Cases = std::vector<BenchCase>;

std::string product_shape(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  return fmt::format("{} x {} x {}", rows, columns, depth);
}

/// A case that is named like its op.
template <class Args>
BenchCase named(const Args& args, std::int64_t rows, std::int64_t columns, const char* what = "") {
  return {fmt::format("{}{}", Args::kName, what), fmt::format("{} x {}", rows, columns), args};
}

/// The three products of a layer with weight (outputs, inputs).
Cases linear(BenchTensors& t, std::int64_t n, std::int64_t inputs, std::int64_t outputs) {
  const TensorView x = t.random({n, inputs});
  const TensorView y = t.random({n, outputs});
  const TensorView weight = t.random({outputs, inputs});
  Matmul forward{.a = x, .b = weight, .c = {}, .d = y, .transpose_b = true};
  Matmul input_gradient{.a = y, .b = weight, .c = {}, .d = x};
  Matmul weight_gradient{.a = y, .b = x, .c = {}, .d = weight, .transpose_a = true};
  return {{"y = x W^T", product_shape(n, outputs, inputs), forward},
          {"d_x = d_y W", product_shape(n, inputs, outputs), input_gradient},
          {"d_W = d_y^T x", product_shape(outputs, inputs, n), weight_gradient}};
}

/// What the products of `linear` are beside: a residual added, and an f32 sum over chunks.
Cases adding_products(BenchTensors& t, const OpBenchModel& m) {
  const std::int64_t n = m.rows();
  const Matmul down{.a = t.random({n, m.ffn_width}),
                    .b = t.random({m.width, m.ffn_width}),
                    .c = t.random({n, m.width}),
                    .d = t.random({n, m.width}),
                    .transpose_b = true};
  const TensorView d_hidden = t.random(DType::kF32, {n, m.width});
  const Matmul head{
      .a = t.random({n, m.vocab_chunk}), .b = t.random({m.vocab_chunk, m.width}), .c = d_hidden, .d = d_hidden};
  return {{"y = x W^T + c", product_shape(n, m.width, m.ffn_width), down},
          {"f32 d_x += d_y W", product_shape(n, m.width, m.vocab_chunk), head}};
}

TensorView heads(const OpBenchModel& m, const TensorView& fused, std::int64_t first, std::int64_t count) {
  TensorView view = fused.reshape({fused.shape[0] / m.length, m.length, m.n_heads + 2 * m.n_kv_heads, m.head_dim});
  view.data = static_cast<std::byte*>(view.data) + static_cast<std::size_t>(first * m.head_dim) * size_of(view.dtype);
  view.shape[2] = count;
  return view;
}

std::int64_t qkv_width(const OpBenchModel& m) { return (m.n_heads + 2 * m.n_kv_heads) * m.head_dim; }

Cases attention(BenchTensors& t, const OpBenchModel& m) {
  const TensorView qkv = t.random({m.rows(), qkv_width(m)});
  const TensorView d_qkv = t.random({m.rows(), qkv_width(m)});
  AttentionForward forward;
  forward.q = heads(m, qkv, 0, m.n_heads);
  forward.k = heads(m, qkv, m.n_heads, m.n_kv_heads);
  forward.v = heads(m, qkv, m.n_heads + m.n_kv_heads, m.n_kv_heads);
  forward.o = t.random({m.batch, m.length, m.n_heads, m.head_dim});
  forward.lse = t.random(DType::kF32, {m.batch, m.n_heads, m.length});
  forward.scale = 0.125F;
  AttentionBackward backward;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.o = forward.o;
  backward.lse = forward.lse;  // the forward case runs first
  backward.scale = forward.scale;
  backward.d_o = t.random({m.batch, m.length, m.n_heads, m.head_dim});
  backward.d_q = heads(m, d_qkv, 0, m.n_heads);
  backward.d_k = heads(m, d_qkv, m.n_heads, m.n_kv_heads);
  backward.d_v = heads(m, d_qkv, m.n_heads + m.n_kv_heads, m.n_kv_heads);
  const std::string shape = fmt::format("{} x {} x {}/{} x {}", m.batch, m.length, m.n_heads, m.n_kv_heads, m.head_dim);
  return {{forward.kName, shape, forward}, {backward.kName, shape, backward}};
}

Cases norms(BenchTensors& t, const OpBenchModel& m, bool device) {
  const std::int64_t n = m.narrow_batch * m.length;
  RmsNormForward forward;
  forward.x = t.random({n, m.width});
  forward.weight = t.random({m.width});
  forward.y = t.random({n, m.width});
  forward.rstd = t.random(DType::kF32, {n});
  RmsNormBackward backward;
  backward.d_y = forward.y;
  backward.x = forward.x;
  backward.weight = forward.weight;
  backward.rstd = forward.rstd;
  backward.d_x = t.random({n, m.width});
  backward.d_weight = t.random({m.width});
  Cases cases = {named(forward, n, m.width), named(backward, n, m.width)};
  if (!device) return cases;
  forward.addend = t.random({n, m.width});
  forward.sum = t.random({n, m.width});
  backward.d_residual = backward.d_x;
  cases.push_back(named(forward, n, m.width, " + x"));
  cases.push_back(named(backward, n, m.width, " + x"));
  return cases;
}

Cases rotation(BenchTensors& t, const OpBenchModel& m) {
  Rope rope;
  const std::int64_t n = m.narrow_batch * m.length;
  rope.x = heads(m, t.random({n, qkv_width(m)}), 0, m.n_heads + m.n_kv_heads);
  rope.cos = t.random(DType::kF32, {m.length, m.head_dim / 2});
  rope.sin = t.random(DType::kF32, {m.length, m.head_dim / 2});
  return {named(rope, n, (m.n_heads + m.n_kv_heads) * m.head_dim)};
}

Cases swiglu(BenchTensors& t, const OpBenchModel& m) {
  const std::int64_t n = m.rows();
  const TensorView gate_up = t.random({n, 2 * m.ffn_width});
  const TensorView gate = gate_up.columns(0, m.ffn_width);
  const TensorView up = gate_up.columns(m.ffn_width, m.ffn_width);
  const TensorView y = t.random({n, m.ffn_width});
  SumOfSquares squares;
  squares.x = y;
  squares.y = t.random(DType::kF32, {1});
  const SwigluForward forward{.gate = gate, .up = up, .y = y};
  const TensorView d_gate_up = t.random({n, 2 * m.ffn_width});  // a step overwrites gate_up; here values would run away
  const SwigluBackward backward{.d_y = y,
                                .gate = gate,
                                .up = up,
                                .d_gate = d_gate_up.columns(0, m.ffn_width),
                                .d_up = d_gate_up.columns(m.ffn_width, m.ffn_width),
                                .y = t.random({n, m.ffn_width})};
  return {named(forward, n, m.ffn_width), named(backward, n, m.ffn_width), named(squares, n, m.ffn_width)};
}

Cases cross_entropy(BenchTensors& t, const OpBenchModel& m) {
  const std::int64_t n = m.rows();
  CrossEntropyChunk chunk;
  chunk.logits = t.random({n, m.vocab_chunk});
  chunk.targets = t.ids(n, m.vocab_chunk);
  chunk.lse = t.random(DType::kF32, {n});
  chunk.target_logit = t.random(DType::kF32, {n});
  CrossEntropyBackward backward;
  backward.logits = chunk.logits;
  backward.targets = chunk.targets;
  backward.lse = chunk.lse;
  return {named(chunk, n, m.vocab_chunk), named(backward, n, m.vocab_chunk)};
}

Cases embedding(BenchTensors& t, const OpBenchModel& m) {
  const std::int64_t n = m.narrow_batch * m.length;
  EmbeddingForward forward;
  forward.ids = t.ids(n, m.vocab_chunk);
  forward.table = t.random({m.vocab_chunk, m.width});
  forward.y = t.random({n, m.width});
  return {named(forward, n, m.width)};
}

Cases casts(BenchTensors& t, const OpBenchModel& m) {
  const std::int64_t n = m.narrow_batch * m.length;
  const Cast cast{.x = t.random(DType::kF32, {n, m.width}), .y = t.random({n, m.width})};
  return {named(cast, n, m.width)};
}

/// Every state format of the weights' dtype, on as many parameters as a layer's gate_up has.
Cases adamw(BenchTensors& t, const OpBenchModel& m) {
  const std::int64_t n = 2 * m.ffn_width * m.width;
  Adamw op;
  op.weight = t.random({n});
  op.gradient = t.random({n});
  op.m = t.zeros(DType::kF32, {n});
  op.v = t.zeros(DType::kF32, {n});
  op.scalars = adamw_scalars({}, 1e-4, 1, true);
  if (t.dtype() == DType::kF32) return {named(op, 2 * m.ffn_width, m.width)};
  op.weight_low = t.zeros(DType::kI16, {n});
  Cases cases = {named(op, 2 * m.ffn_width, m.width, " (f32 state)")};
  op.m = t.zeros(DType::kBf16, {n});
  op.v = t.zeros(DType::kBf16, {n});
  cases.push_back(named(op, 2 * m.ffn_width, m.width, " (mixed state)"));
  op.weight_low = {};
  cases.push_back(named(op, 2 * m.ffn_width, m.width, " (bf16 state)"));
  return cases;
}

}  // namespace

BenchTensors::BenchTensors(Backend& backend, StreamRef stream, DType dtype)
    : backend_(backend),
      stream_(stream),
      dtype_(dtype),
      values_(backend, dtype, 1),
      f32_values_(backend, DType::kF32, 1) {}

TensorView BenchTensors::allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape);
  buffers_.push_back(backend_.allocate_device(view.size_bytes(), "bench tensors"));
  view.data = buffers_.back().data();
  return view;
}

TensorView BenchTensors::random(DType dtype, std::initializer_list<std::int64_t> shape) {
  const TensorView view = allocate(dtype, shape);
  (dtype == dtype_ ? values_ : f32_values_).fill(stream_, view.data, view.elems());
  return view;
}

TensorView BenchTensors::zeros(DType dtype, std::initializer_list<std::int64_t> shape) {
  const TensorView view = allocate(dtype, shape);
  backend_.enqueue(stream_, Fill{.x = view});
  backend_.sync(stream_);
  return view;
}

TensorView BenchTensors::ids(std::int64_t n, std::int64_t limit) {
  const TensorView view = allocate(DType::kI32, {n});
  RandomFill(backend_, DType::kI32, static_cast<float>(limit)).fill(stream_, view.data, n);
  return view;
}

std::vector<BenchGroup> bench_groups(const OpBenchModel& m, bool device) {
  const auto product = [&m](std::int64_t inputs, std::int64_t outputs) -> BenchGroup {
    return [n = m.rows(), inputs, outputs](BenchTensors& t) { return linear(t, n, inputs, outputs); };
  };
  const auto group = [&m](Cases (*build)(BenchTensors&, const OpBenchModel&)) -> BenchGroup {
    return [&m, build](BenchTensors& t) { return build(t, m); };
  };
  std::vector<BenchGroup> groups = {product(m.width, qkv_width(m))};
  if (device) groups.push_back(product(m.n_heads * m.head_dim, m.width));
  groups.push_back(product(m.width, device ? 2 * m.ffn_width : m.ffn_width));
  groups.push_back(product(m.ffn_width, m.width));
  if (device) groups.insert(groups.end(), {product(m.width, m.vocab_chunk), group(adding_products)});
  groups.push_back(group(attention));
  groups.emplace_back([&m, device](BenchTensors& t) { return norms(t, m, device); });
  groups.insert(groups.end(), {group(rotation), group(swiglu), group(cross_entropy)});
  if (device) groups.insert(groups.end(), {group(embedding), group(casts), group(adamw)});
  return groups;
}

}  // namespace ferry
