// SPDX-License-Identifier: Apache-2.0
// A very small byte-level model.
#include "train/tiny_run.h"

#include <string_view>

namespace ferry::test {

ModelConfig byte_config(bool tied) {
  ModelConfig config;
  config.vocab_size = 256;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.n_layers = 2;
  config.n_heads = 2;
  config.n_kv_heads = 1;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = tied;
  return config;
}

std::string simple_text(int n_sentences) {
  std::string text;
  for (int i = 0; i < n_sentences; ++i) text += i % 3 == 0 ? "the cat sat on the mat. " : "the dog ran to the sea. ";
  return text;
}

TinyRun::TinyRun(DType dtype, bool tied) : config(byte_config(tied)), backend(create_backend("cpu", {.threads = 1})) {
  EngineOptions options;
  options.dtype = dtype;
  options.batch_size = kBatchSize;
  options.seq_len = kSeqLen;
  options.threads = 1;
  engine = std::make_unique<Engine>(*backend, config, options);
  engine->initialize(7);
}

SequenceSet TinyRun::sequences(int n_sentences) {
  const auto path = folder.write(std::to_string(n_sentences) + ".txt", simple_text(n_sentences));
  return SequenceSet({{path, TokenFormat::kBytes}}, kSeqLen, config.vocab_size);
}

std::uint64_t fingerprint(Engine& engine) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  engine.for_each_piece([&](const ParameterInfo&, std::int64_t, TensorView piece) {
    const std::string_view bytes(static_cast<const char*>(piece.data), piece.size_bytes());
    for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  });
  return hash;
}

}  // namespace ferry::test
