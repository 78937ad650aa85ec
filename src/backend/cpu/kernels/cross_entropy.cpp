// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over vocabulary chunks: running log-sum-exp, mean loss, gradient in place.
// Source: Milakov & Gimelshein 2018, arXiv:1805.02867, algorithm 3.
#include "backend/cpu/kernels/lanes.h"

namespace ferry::cpu::FERRY_ISA {
namespace {

/// sum = total of exp(x - maximum) over what was seen so far.
struct RunningSum {
  float maximum = -kInfinity;
  float sum = 0;
};

void add_block(RunningSum& state, const Block& logits, std::int64_t n) {
  const float largest = max_lanes(logits.values, n);
  const float maximum = largest > state.maximum ? largest : state.maximum;
  if (maximum == -kInfinity) {
    state.sum += sum_lanes(logits.values, n) == -kInfinity ? 0.0F : __builtin_nanf("");
    return;
  }
  Block shifted;
  Block powers;
  for (std::int64_t i = 0; i < n; ++i) shifted.values[i] = logits.values[i] - maximum;
  exp_lanes(powers.values, shifted.values, n);
  const float kept = state.maximum == -kInfinity ? state.sum : state.sum * __builtin_expf(state.maximum - maximum);
  state = {maximum, kept + sum_lanes(powers.values, n)};
}

template <class T>
void chunk_row(const CrossEntropyChunk& op, std::int64_t row) {
  const std::int64_t width = op.logits.shape[1];
  const T* const logits = at<const T>(op.logits, row * op.logits.stride[0]);
  float* const lse = at<float>(op.lse, row);
  float* const target_logit = at<float>(op.target_logit, row);
  const bool first = op.first_token == 0;
  RunningSum state;
  if (!first) state = {*lse, *lse == -kInfinity ? 0.0F : 1.0F};
  Block block;
  for (std::int64_t c = 0; c < width; c += kBlock) {
    const std::int64_t count = smaller(kBlock, width - c);
    load_padded(block.values, logits + c, count, -kInfinity);
    add_block(state, block, round_up(count));
  }
  *lse = state.maximum + __builtin_logf(state.sum);
  const std::int64_t target = at<const std::int32_t>(op.targets)[row] - op.first_token;
  if (target >= 0 && target < width) {
    *target_logit = to_float(logits[target]);
  } else if (first) {
    *target_logit = 0;
  }
}

template <class T>
void backward_row(const CrossEntropyBackward& op, std::int64_t row) {
  const std::int64_t width = op.logits.shape[1];
  T* const logits = at<T>(op.logits, row * op.logits.stride[0]);
  const std::int64_t label = at<const std::int32_t>(op.targets)[row];
  if (label == kIgnoreIndex) {
    for (std::int64_t c = 0; c < width; ++c) logits[c] = T{};
    return;
  }
  const float lse = at<const float>(op.lse)[row];
  const std::int64_t target = label - op.first_token;
  Block shifted;
  Block out;
  for (std::int64_t c = 0; c < width; c += kBlock) {
    const std::int64_t count = smaller(kBlock, width - c);
    load_padded(shifted.values, logits + c, count, 0);
    for (std::int64_t i = 0; i < round_up(count); ++i) shifted.values[i] -= lse;
    exp_lanes(out.values, shifted.values, round_up(count));
    if (target >= c && target < c + count) out.values[target - c] -= 1.0F;
    for (std::int64_t i = 0; i < round_up(count); ++i) out.values[i] *= op.scale;
    store(logits + c, out.values, count);
  }
}

}  // namespace

void cross_entropy_chunk(const CrossEntropyChunk& op, Range rows) {
  with_type(op.logits.dtype, [&](auto type) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) chunk_row<decltype(type)>(op, r);
  });
}

void cross_entropy_loss(const CrossEntropyLoss& op) {
  const std::int64_t n = op.targets.shape[0];
  const auto* const targets = at<const std::int32_t>(op.targets);
  const float* const lse = at<const float>(op.lse);
  const float* const target_logit = at<const float>(op.target_logit);
  Block block;
  float total = 0;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    for (std::int64_t j = 0; j < kBlock; ++j) {
      const bool counts = i + j < n && targets[i + j] != kIgnoreIndex;
      block.values[j] = counts ? lse[i + j] - target_logit[i + j] : 0.0F;
    }
    total += sum_lanes(block.values, kBlock);
  }
  *at<float>(op.loss) = op.scale * total;
}

void cross_entropy_backward(const CrossEntropyBackward& op, Range rows) {
  with_type(op.logits.dtype, [&](auto type) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) backward_row<decltype(type)>(op, r);
  });
}

}  // namespace ferry::cpu::FERRY_ISA
