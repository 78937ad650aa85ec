// SPDX-License-Identifier: Apache-2.0
// The arithmetic that training a Llama takes, however it is run.
#pragma once

#include <cstdint>

#include "config/model_config.h"

namespace ferry {

/// Model FLOP of one training step on batch_size x seq_len tokens: nothing computed again is counted. Per token 6 for
/// each weight of a matrix product (2 forward, 4 backward; lm_head counts, the embedding lookup does not), and for
/// attention 12 * L * H * D for each key that the token sees: (T + 1) / 2 on average.
/// Source    Chowdhery et al. 2022, arXiv:2204.02311, appendix B, with causal attention.
double model_flop(const ModelConfig& config, std::int64_t batch_size, std::int64_t seq_len);

/// Of these, a third of attention's: its forward pass.
double attention_forward_flop(const ModelConfig& config, std::int64_t batch_size, std::int64_t seq_len);

}  // namespace ferry
