// SPDX-License-Identifier: Apache-2.0
// Causal attention backward for one key/value head: query heads ascending, then query tiles, then key blocks.
// Source: Dao et al. 2022, arXiv:2205.14135, algorithm 4.
#include "backend/cpu/kernels/attention.h"

namespace ferry::cpu::FERRY_ISA {
namespace {

struct Buffers {
  float* q;            // (kQueryTile, D), times scale
  float* d_o;          // (kQueryTile, D)
  float* d_q;          // (kQueryTile, D), without scale
  float* k;            // (kKeyBlock, D)
  float* v;            // (kKeyBlock, D)
  float* probability;  // (kQueryTile, kKeyBlock)
  float* d_score;      // (kQueryTile, kKeyBlock)
  float lse[kQueryTile];
  float delta[kQueryTile];  // sum over D of d_o * o
};

/// Row r: scores become probabilities, and d_probability becomes d_score = probability * (d_probability - delta).
void softmax_backward_row(Buffers& b, std::int64_t r, std::int64_t visible, std::int64_t count) {
  float* __restrict probability = b.probability + r * kKeyBlock;
  float* __restrict d_score = b.d_score + r * kKeyBlock;
  const std::int64_t padded = round_up(visible);
  const float lse = b.lse[r];
  const float delta = b.delta[r];
  Block shifted;
  for (std::int64_t i = 0; i < visible; ++i) shifted.values[i] = probability[i] - lse;
  for (std::int64_t i = visible; i < padded; ++i) shifted.values[i] = -kInfinity;
  exp_lanes(probability, shifted.values, padded);
  for (std::int64_t i = 0; i < visible; ++i) d_score[i] = probability[i] * (d_score[i] - delta);
  for (std::int64_t i = visible; i < count; ++i) {
    probability[i] = 0;
    d_score[i] = 0;
  }
}

/// delta of each row of the tile; uses d_q as a buffer for o.
void load_tile(const AttentionBackward& op, const QueryTile& tile, Buffers& b) {
  const std::int64_t width = op.q.shape[3];
  load_rows(b.q, op.q, tile.batch, tile.head, tile.begin, tile.count, op.scale);
  load_rows(b.d_o, op.d_o, tile.batch, tile.head, tile.begin, tile.count, 1);
  load_rows(b.d_q, op.o, tile.batch, tile.head, tile.begin, tile.count, 1);
  const float* const lse =
      at<const float>(op.lse, (tile.batch * op.q.shape[2] + tile.head) * op.q.shape[1] + tile.begin);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    b.lse[r] = lse[r];
    const std::int64_t whole = width / kLanes * kLanes;
    const float* const o = b.d_q + r * width;
    const float* const d_o = b.d_o + r * width;
    b.delta[r] = dot_lanes(o, d_o, whole);
    for (std::int64_t i = whole; i < width; ++i) b.delta[r] += o[i] * d_o[i];
  }
  for (std::int64_t i = 0; i < tile.count * width; ++i) b.d_q[i] = 0;
}

void tile_backward(const AttentionBackward& op, const QueryTile& tile, std::int64_t kv_head, float* sum_d_k,
                   float* sum_d_v, Buffers& b) {
  const std::int64_t width = op.q.shape[3];
  const std::int64_t first_limit = tile.begin + 1 + op.k.shape[1] - op.q.shape[1];
  const std::int64_t limit = first_limit + tile.count - 1;
  load_tile(op, tile, b);
  const auto q = rows_of(b.q, tile.count, width, width);
  const auto d_o = rows_of(b.d_o, tile.count, width, width);
  for (std::int64_t begin = 0; begin < limit; begin += kKeyBlock) {
    const KeyBlock block = {begin, smaller(kKeyBlock, limit - begin), first_limit};
    load_rows(b.k, op.k, tile.batch, kv_head, begin, block.count, 1);
    load_rows(b.v, op.v, tile.batch, kv_head, begin, block.count, 1);
    const auto k = rows_of(b.k, block.count, width, width);
    auto probability = rows_of(b.probability, tile.count, block.count, kKeyBlock);
    auto d_score = rows_of(b.d_score, tile.count, block.count, kKeyBlock);
    probability.noalias() = q * k.transpose();
    d_score.noalias() = d_o * rows_of(b.v, block.count, width, width).transpose();
    for (std::int64_t r = 0; r < tile.count; ++r) softmax_backward_row(b, r, block.visible(r), block.count);
    rows_of(sum_d_v + begin * width, block.count, width, width).noalias() += probability.transpose() * d_o;
    rows_of(sum_d_k + begin * width, block.count, width, width).noalias() += d_score.transpose() * q;
    rows_of(b.d_q, tile.count, width, width).noalias() += d_score * k;
  }
  for (std::int64_t i = 0; i < tile.count * width; ++i) b.d_q[i] *= op.scale;
  store_rows(op.d_q, tile.batch, tile.head, tile.begin, tile.count, b.d_q);
}

}  // namespace

void attention_backward(const AttentionBackward& op, std::int64_t batch, std::int64_t kv_head, float* sum_d_k,
                        float* sum_d_v, float* workspace) {
  const std::int64_t width = op.q.shape[3];
  const std::int64_t length = op.q.shape[1];
  const std::int64_t n_keys = op.k.shape[1];
  const std::int64_t group = op.q.shape[2] / op.k.shape[2];
  Carver carver(workspace);
  Buffers b;
  for (float** tile : {&b.q, &b.d_o, &b.d_q}) *tile = carver.take(kQueryTile * width);
  for (float** block : {&b.k, &b.v}) *block = carver.take(kKeyBlock * width);
  for (float** scores : {&b.probability, &b.d_score}) *scores = carver.take(kQueryTile * kKeyBlock);
  for (std::int64_t i = 0; i < n_keys * width; ++i) sum_d_k[i] = 0;
  for (std::int64_t i = 0; i < n_keys * width; ++i) sum_d_v[i] = 0;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t begin = 0; begin < length; begin += kQueryTile) {
      tile_backward(op, {batch, head, begin, smaller(kQueryTile, length - begin)}, kv_head, sum_d_k, sum_d_v, b);
    }
  }
  store_rows(op.d_k, batch, kv_head, 0, n_keys, sum_d_k);
  store_rows(op.d_v, batch, kv_head, 0, n_keys, sum_d_v);
}

}  // namespace ferry::cpu::FERRY_ISA
