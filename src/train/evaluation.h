// SPDX-License-Identifier: Apache-2.0
// How well a model predicts a text: loss per token and, where the bytes of its tokens are known, per byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/batch_loader.h"
#include "data/token_text.h"
#include "offload/engine.h"

namespace ferry {

struct Evaluation {
  double loss_sum = 0;  // nats
  std::int64_t n_tokens = 0;
  std::optional<std::int64_t> n_bytes;  // of the text that these tokens stand for
  double elapsed_s = 0;

  /// Nats per token.
  double loss() const { return loss_sum / static_cast<double>(n_tokens); }
  std::optional<double> bits_per_byte() const;
  double tokens_per_s() const { return static_cast<double>(n_tokens) / elapsed_s; }
};

/// Of the targets of one sequence; special tokens stand for none, and a first space that belongs to the encoding does
/// not count.
std::int64_t text_bytes(const TokenText& text, std::span<const std::int32_t> inputs,
                        std::span<const std::int32_t> targets);

/// Reads batches until they end, or `eval_tokens` (0: all) have been predicted. `text` may be null: then bytes are not
/// known. Throws Error{kIo} as EvaluationBatches::next; Error{kConfig} without a target; Error{kDevice} for a loss that
/// is not finite.
Evaluation evaluate(Engine& engine, EvaluationBatches& batches, std::int64_t eval_tokens, const TokenText* text);

/// What an evaluation was of.
struct EvaluationLine {
  std::string model;
  DType dtype = DType::kF32;
  std::int64_t seq_len = 0;
  Evaluation result;
};
/// One object as in metrics.jsonl, newline included.
std::string to_json_line(const EvaluationLine& line);

}  // namespace ferry
