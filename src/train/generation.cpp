// SPDX-License-Identifier: Apache-2.0
// The loop around the sampler, and what becomes of sequences that are longer than the model sees.
#include "train/generation.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "data/byte_vocabulary.h"

namespace ferry {

void generate(const Extend& extend, std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t)>& on_id) {
  FERRY_ASSERT(!prompt.empty());
  Sampler sampler(options.sampler);
  std::int32_t id = 0;
  for (std::int64_t i = 0; i < options.n_tokens; ++i) {
    id = sampler.sample(extend(i == 0 ? prompt : std::span<const std::int32_t>(&id, 1)));
    if (std::ranges::count(options.end_ids, id) > 0 || !on_id(id)) return;
  }
}

std::vector<float> CachedSequence::extend(std::span<const std::int32_t> ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  if (engine_.n_cached() + std::ssize(ids) <= n_tokens_) return engine_.extend(ids);
  ++n_restarts_;
  engine_.reset_cache();
  const auto half = static_cast<std::size_t>(std::max<std::int64_t>(1, n_tokens_ / 2));
  return engine_.extend(std::span(ids_).last(std::min(half, ids_.size())));
}

Extend extend_without_cache(Engine& engine, std::int64_t context) {
  const auto all = std::make_shared<std::vector<std::int32_t>>();
  return [&engine, context, all](std::span<const std::int32_t> ids) {
    all->insert(all->end(), ids.begin(), ids.end());
    return engine.next_logits(std::span(*all).last(std::min(static_cast<std::size_t>(context), all->size())));
  };
}

std::vector<std::int32_t> byte_prompt(std::string_view text) { return encode_bytes(text.empty() ? "\n" : text); }

}  // namespace ferry
