// SPDX-License-Identifier: Apache-2.0
// Sums over batches, and their JSON.
#include "train/evaluation.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/error.h"
#include "core/tokens.h"
#include "train/metrics.h"
#include "train/stopwatch.h"

namespace ferry {

std::optional<double> Evaluation::bits_per_byte() const {
  if (!n_bytes || *n_bytes == 0) return std::nullopt;
  return loss_sum / std::numbers::ln2 / static_cast<double>(*n_bytes);
}

std::int64_t text_bytes(const TokenText& text, std::span<const std::int32_t> inputs,
                        std::span<const std::int32_t> targets) {
  std::size_t n_bytes = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == kIgnoreIndex) continue;
    n_bytes += TextDecoder(text, text.is_special(inputs[i])).next(targets[i]).size();
  }
  return static_cast<std::int64_t>(n_bytes);
}

Evaluation evaluate(Engine& engine, EvaluationBatches& batches, std::int64_t eval_tokens, const TokenText* text) {
  const Stopwatch watch;
  Evaluation result;
  if (text != nullptr) result.n_bytes = 0;
  Batch batch;
  while ((eval_tokens == 0 || result.n_tokens < eval_tokens) && batches.next(batch)) {
    if (batch.n_valid_targets == 0) continue;
    result.loss_sum += engine.evaluate(batch);
    result.n_tokens += batch.n_valid_targets;
    if (text != nullptr) *result.n_bytes += text_bytes(*text, batch.inputs, batch.targets);
  }
  FERRY_CHECK(result.n_tokens > 0, kConfig, "val_data holds no valid target: its mask leaves nothing to evaluate");
  FERRY_CHECK(std::isfinite(result.loss_sum), kDevice,
              "the loss is {}: the weights are damaged, or too large for their dtype", result.loss_sum);
  result.elapsed_s = watch.seconds();
  return result;
}

std::string to_json_line(const EvaluationLine& line) {
  const Evaluation& result = line.result;
  const auto or_null = [](const auto& value) { return value ? nlohmann::ordered_json(*value) : nullptr; };
  const nlohmann::ordered_json json = {{"kind", "eval"},
                                       {"model", line.model},
                                       {"dtype", to_string(line.dtype)},
                                       {"seq_len", line.seq_len},
                                       {"val_loss", result.loss()},
                                       {"perplexity", perplexity(result.loss())},
                                       {"bits_per_byte", or_null(result.bits_per_byte())},
                                       {"val_tokens", result.n_tokens},
                                       {"val_bytes", or_null(result.n_bytes)},
                                       {"tokens_per_s", result.tokens_per_s()},
                                       {"elapsed_s", result.elapsed_s}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ferry
