// SPDX-License-Identifier: Apache-2.0
// Continues a sequence token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "offload/engine.h"
#include "train/sampler.h"

namespace ferry {

/// Adds ids to a sequence, 1 or more; logits of the token after them.  -> (V)
using Extend = std::function<std::vector<float>(std::span<const std::int32_t> ids)>;

struct GenerationOptions {
  std::int64_t n_tokens = 0;          // at most
  std::vector<std::int32_t> end_ids;  // any of them ends the sequence, and is not handed out
  SamplerOptions sampler;
};

/// Calls on_id for each new token as soon as it is known; stops early when it returns false. `prompt` is not empty.
void generate(const Extend& extend, std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t)>& on_id);

/// A sequence in the cache of an engine. When it outgrows the cache, the model goes on with the last half of what the
/// cache can hold, and so again each time. The engine outlives it.
class CachedSequence {
 public:
  /// `n_tokens`: the engine's cache_tokens.
  CachedSequence(Engine& engine, std::int64_t n_tokens) : engine_(engine), n_tokens_(n_tokens) {}

  std::vector<float> extend(std::span<const std::int32_t> ids);
  /// How often the cache was full.
  std::int64_t n_restarts() const { return n_restarts_; }

 private:
  Engine& engine_;
  std::int64_t n_tokens_;
  std::vector<std::int32_t> ids_;
  std::int64_t n_restarts_ = 0;
};

/// Without a cache: `engine` computes the last `context` ids anew for each token.
Extend extend_without_cache(Engine& engine, std::int64_t context);

/// An empty text begins with a newline.
std::vector<std::int32_t> byte_prompt(std::string_view text);

}  // namespace ferry
