// SPDX-License-Identifier: Apache-2.0
// Logits of one position: of a sequence as a whole, or of one that grows in the key/value cache.
#include <algorithm>

#include "core/error.h"
#include "offload/engine_impl.h"

namespace ferry {

std::vector<float> Engine::Impl::next_logits(std::span<const std::int32_t> ids) {
  const auto n = std::ssize(ids);
  FERRY_CHECK(n >= 1 && n <= options_.seq_len, kShape, "{} ids: expected 1 to {}", n, options_.seq_len);
  check_ids(ids, config_.vocab_size, false);
  const Pass pass = begin_pass(1, n, PassOps::Kind::kForward);
  upload_tokens(pass.shape(), ids, {});
  embed(pass, ids, BatchRows(ids));
  forward_layers(pass);
  std::vector<float> logits = last_logits(pass);
  end_pass();
  return logits;
}

std::vector<float> Engine::Impl::extend(std::span<const std::int32_t> ids) {
  const auto n = std::ssize(ids);
  FERRY_CHECK(n >= 1 && n <= options_.cache_tokens - n_cached_, kShape,
              "{} ids after {} in the cache: expected 1 to {}, the cache was planned for {} tokens", n, n_cached_,
              options_.cache_tokens - n_cached_, options_.cache_tokens);
  check_ids(ids, config_.vocab_size, false);
  std::vector<float> logits;
  for (std::int64_t first = 0; first < n; first += options_.seq_len) {
    const std::int64_t count = std::min(options_.seq_len, n - first);
    const auto part = ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    const bool last = first + count == n;
    const Pass pass = begin_cached_pass(count, last);
    upload_tokens(pass.shape(), part, {});
    embed(pass, part, BatchRows(part));
    forward_layers(pass);
    n_cached_ += count;
    if (last) logits = last_logits(pass);
    end_pass();
  }
  return logits;
}

Pass Engine::Impl::begin_cached_pass(std::int64_t n_ids, bool with_head) {
  Pass pass{
      .ops = PassOps(buffers_, compute_context(), LlamaShape(config_, 1, n_ids), PassOps::Kind::kCached, n_cached_),
      .head_chunks = with_head ? head_chunks() : std::vector<int>{}};
  start(pass);
  return pass;
}

void Engine::Impl::reset_cache() {
  n_cached_ = 0;
  if (const TensorView cache = buffers_.cache()) streams_.poison(streams_.compute.get(), cache);
}

/// The head for the last row of a pass, chunk by chunk.
std::vector<float> Engine::Impl::last_logits(const Pass& pass) {
  const HeadCall call{
      .context = pass.context(), .targets = {}, .work = buffers_.head(LlamaShape(config_, 1, 1)).rows(0, 1)};
  {
    const WeightLease norm = weights_->acquire(parameters_.final_norm_segment());
    const TensorView last = buffers_.residual(pass.shape(), config_.n_layers).rows(pass.shape().N() - 1, 1);
    head_norm(call, norm.weights(), last, pass.shape().eps);
  }
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(config_.vocab_size));
  for (const int segment : pass.head_chunks) {
    const Segment& info = parameters_.segment(segment);
    const WeightLease lease = weights_->acquire(segment);
    const TensorView logits = buffers_.logits({0, 1}, info);
    head_logits(call, {.weight = lease.weights().reshape({info.n_rows, config_.hidden_size}), .logits = logits});
    streams_.order(streams_.compute.get(), streams_.d2h.get(), logits_ready_.get());
    const TensorView row(host_.memory.at(host_.logits), options_.dtype, {info.n_rows});
    streams_.to_host(row.data, logits.data, row.size_bytes());
    backend_.sync(streams_.d2h.get());
    backend_.host_access(Access::kRead, row.data, row.size_bytes(), "logits");
    for (std::int64_t i = 0; i < row.elems(); ++i) {
      result.push_back(row.dtype == DType::kF32 ? row.as<float>()[i] : to_f32(row.as<Bf16>()[i]));
    }
  }
  return result;
}

}  // namespace ferry
