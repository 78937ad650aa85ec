// SPDX-License-Identifier: Apache-2.0
// Causal attention forward for one tile of query rows: online softmax over blocks of keys.
// Source: Dao et al. 2022, arXiv:2205.14135, algorithm 1.
#include "backend/cpu/kernels/attention.h"

namespace ferry::cpu::FERRY_ISA {
namespace {

/// Per query row: o = out / sum, and the logits' largest value so far.
struct TileState {
  float* out;  // (count, D)
  float maximum[kQueryTile];
  float sum[kQueryTile];
};

/// Turns the row's scores into exp(score - maximum), 0 where not visible, and rescales what was summed before.
void softmax_row(TileState& state, std::int64_t r, float* scores, std::int64_t visible, std::int64_t count,
                 std::int64_t width) {
  const std::int64_t padded = round_up(visible);
  for (std::int64_t i = visible; i < padded; ++i) scores[i] = -kInfinity;
  const float largest = max_lanes(scores, padded);
  const float maximum = largest > state.maximum[r] ? largest : state.maximum[r];
  Block shifted;
  for (std::int64_t i = 0; i < padded; ++i) shifted.values[i] = scores[i] - maximum;
  exp_lanes(scores, shifted.values, padded);
  const float kept = __builtin_expf(state.maximum[r] - maximum);
  state.sum[r] = state.sum[r] * kept + sum_lanes(scores, padded);
  state.maximum[r] = maximum;
  float* const out = state.out + r * width;
  if (kept != 1.0F) {
    for (std::int64_t i = 0; i < width; ++i) out[i] *= kept;
  }
  for (std::int64_t i = padded; i < count; ++i) scores[i] = 0;
}

}  // namespace

void attention_forward(const AttentionForward& op, const QueryTile& tile, float* workspace) {
  const std::int64_t width = op.q.shape[3];
  const std::int64_t kv_head = tile.head / (op.q.shape[2] / op.k.shape[2]);
  const std::int64_t first_limit = tile.begin + 1 + op.k.shape[1] - op.q.shape[1];
  Carver carver(workspace);
  float* const q = carver.take(kQueryTile * width);
  float* const kv = carver.take(kKeyBlock * width);
  float* const scores = carver.take(kQueryTile * kKeyBlock);
  TileState state;
  state.out = carver.take(kQueryTile * width);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    state.maximum[r] = -kInfinity;
    state.sum[r] = 0;
  }
  for (std::int64_t i = 0; i < tile.count * width; ++i) state.out[i] = 0;
  load_rows(q, op.q, tile.batch, tile.head, tile.begin, tile.count, op.scale);

  const std::int64_t limit = first_limit + tile.count - 1;
  for (std::int64_t begin = 0; begin < limit; begin += kKeyBlock) {
    const KeyBlock block = {begin, smaller(kKeyBlock, limit - begin), first_limit};
    load_rows(kv, op.k, tile.batch, kv_head, begin, block.count, 1);
    auto score_rows = rows_of(scores, tile.count, block.count, kKeyBlock);
    auto kv_rows = rows_of(kv, block.count, width, width);
    score_rows.noalias() = rows_of(q, tile.count, width, width) * kv_rows.transpose();
    for (std::int64_t r = 0; r < tile.count; ++r) {
      softmax_row(state, r, scores + r * kKeyBlock, block.visible(r), block.count, width);
    }
    load_rows(kv, op.v, tile.batch, kv_head, begin, block.count, 1);
    rows_of(state.out, tile.count, width, width).noalias() += score_rows * kv_rows;
  }

  float* const lse = at<float>(op.lse, (tile.batch * op.q.shape[2] + tile.head) * op.q.shape[1] + tile.begin);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    lse[r] = state.maximum[r] + __builtin_logf(state.sum[r]);
    const float inverse = 1.0F / state.sum[r];
    for (std::int64_t i = 0; i < width; ++i) state.out[r * width + i] *= inverse;
  }
  store_rows(op.o, tile.batch, tile.head, tile.begin, tile.count, state.out);
}

}  // namespace ferry::cpu::FERRY_ISA
