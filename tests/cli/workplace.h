// SPDX-License-Identifier: Apache-2.0
// A folder with a tiny model, its config and data, for tests that run the program.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "catch.h"
#include "cli/run_ferry.h"
#include "temp_file.h"

namespace ferry::test {

inline constexpr const char* kModel =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
  "vocab_size": 256, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": true, "initializer_range": 0.02, "torch_dtype": "float32"})";

inline constexpr const char* kConfig = R"([model]
model = "model.json"
dtype = "f32"
[data]
train_data = ["train.txt"]
val_data = ["val.txt"]
seq_len = 16
batch_size = 4
[optimizer]
lr = 1e-2
[run]
steps = 60
output = "out"
backend = "cpu"
threads = 1
sample_tokens = 40
)";

/// A folder with a model, a config and data.
struct Workplace : TempFolder {
  Workplace() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += i % 3 == 0 ? "the cat sat on the mat. " : "the dog ran to the sea. ";
    write("train.txt", text);
    write("val.txt", text.substr(0, 500));
    write("model.json", kModel);
    write("tiny.toml", kConfig);
  }

  bool has(const std::string& name) const { return std::filesystem::exists(path() / name); }
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The run must fail with `code`, one "error: " line on stderr that contains `message`, and write no output.
inline void check_refused(const Workplace& place, const std::vector<std::string>& args, int code,
                          const std::string& message) {
  const Outcome outcome = run_ferry(place, args);
  INFO(outcome.err);
  CHECK(outcome.exit_code == code);
  CHECK(outcome.err.starts_with("error: "));
  CHECK(contains(outcome.err, message));
  CHECK(outcome.out.empty());
}

}  // namespace ferry::test
