// SPDX-License-Identifier: Apache-2.0
// Weights of matrix products times 6, and causal attention.
#include "model/model_flop.h"

namespace ferry {

double attention_forward_flop(const ModelConfig& config, std::int64_t batch_size, std::int64_t seq_len) {
  const auto n_layers = static_cast<double>(config.n_layers);
  const auto query_width = static_cast<double>(config.n_heads * config.head_dim);
  const double keys_seen = (static_cast<double>(seq_len) + 1) / 2;
  return 4 * n_layers * query_width * keys_seen * static_cast<double>(batch_size) * static_cast<double>(seq_len);
}

double model_flop(const ModelConfig& config, std::int64_t batch_size, std::int64_t seq_len) {
  const auto width = static_cast<double>(config.hidden_size);
  const auto n_layers = static_cast<double>(config.n_layers);
  const auto query_width = static_cast<double>(config.n_heads * config.head_dim);
  const auto key_width = static_cast<double>(config.n_kv_heads * config.head_dim);
  const double attention_weights = width * (2 * query_width + 2 * key_width);
  const double mlp_weights = 3 * width * static_cast<double>(config.intermediate_size);
  const double head_weights = width * static_cast<double>(config.vocab_size);
  const double weights = n_layers * (attention_weights + mlp_weights) + head_weights;
  const double products = 6 * weights * static_cast<double>(batch_size) * static_cast<double>(seq_len);
  return products + 3 * attention_forward_flop(config, batch_size, seq_len);
}

}  // namespace ferry
