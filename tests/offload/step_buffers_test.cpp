// SPDX-License-Identifier: Apache-2.0
// What each option saves of the arena, and which options are refused.
#include "offload/step_buffers.h"

#include <numeric>

#include "catch.h"
#include "core/error.h"
#include "offload/tiny_model.h"

namespace ferry::test {
namespace {

EngineOptions one_batch() {
  EngineOptions options;
  options.batch_size = 4;
  options.seq_len = 16;
  options.vocab_chunk = 16;
  options.threads = 1;
  return options;
}

/// Bytes planned for `purpose` where the step needs most, or for everything.
std::size_t planned(const EngineOptions& options, const std::string& purpose = "") {
  const auto backend = create_backend("cpu", {.threads = 1});
  MemoryPlan plan;
  ModelConfig config = small_config(true);
  config.intermediate_size = 512;
  const StepBuffers buffers(plan, *backend, config, options, ParameterTable(config, options.vocab_chunk));
  plan.pack();
  std::size_t bytes = 0;
  for (const MemoryLine& line : plan.peak_lines()) {
    if (purpose.empty() || line.purpose == purpose) bytes += line.size_bytes;
  }
  return bytes;
}

std::string refusal(const EngineOptions& options) {
  try {
    planned(options);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kConfig);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("micro-batches share the memory of one") {
  const EngineOptions whole = one_batch();
  EngineOptions cut = whole;
  cut.batch_size = 1;
  cut.accumulate = 4;
  CHECK(planned(cut, "activations of one layer") * 3 < planned(whole, "activations of one layer"));
  CHECK(planned(cut, "residuals") == planned(whole, "residuals"));
  CHECK(planned(cut) < planned(whole));
}

TEST_CASE("a cut MLP takes memory for one part") {
  EngineOptions options = one_batch();
  options.dtype = GENERATE(DType::kF32, DType::kBf16);
  const std::size_t whole = planned(options);
  const std::int64_t rows = 64;
  const auto mlp_bytes = static_cast<std::size_t>(rows * 3 * 512) * size_of(options.dtype);  // gate, up, act
  const auto sums = static_cast<std::size_t>(options.dtype == DType::kBf16 ? 3 * 512 * 24 * 4 : 0);
  options.mlp_cut = {MlpCut::By::kTokens, 8};
  CHECK(planned(options) < whole - mlp_bytes * 3 / 4 + sums);
  CHECK(planned(options, "f32 gradient sums") <= sums);
  options.mlp_cut = {MlpCut::By::kFeatures, 64};
  CHECK(planned(options) < whole - mlp_bytes / 2);
}

TEST_CASE("f32 models need no gradient sums beside the gradient") {
  EngineOptions options = one_batch();
  options.accumulate = 2;
  options.mlp_cut = {MlpCut::By::kTokens, 8};
  options.dtype = DType::kF32;
  CHECK(planned(options, "f32 gradient sums") == 0);
  options.dtype = DType::kBf16;
  CHECK(planned(options, "f32 gradient sums") > 0);
}

TEST_CASE("layers that keep their activations take memory each") {
  EngineOptions options = one_batch();
  options.keep_layers = 1;
  const std::size_t one = planned(options, "kept activations");
  CHECK(one > 0);
  options.keep_layers = 3;
  CHECK(planned(options, "kept activations") == 3 * one);
  options.keep_layers = 0;
  options.recompute = Recompute::kNone;
  CHECK(planned(options, "kept activations") == 3 * one);
}

TEST_CASE("values that no step could use are refused") {
  EngineOptions options = one_batch();
  options.accumulate = 0;
  CHECK(refusal(options) == "accumulate is 0: expected 1 or more");
  options = one_batch();
  options.keep_layers = 4;
  CHECK(refusal(options) == "recompute = keep:4: the model has 3 layers");
  options = one_batch();
  options.mlp_cut = {MlpCut::By::kTokens, 0};
  CHECK(refusal(options) == "mlp_chunk cuts parts of 0: expected 1 or more");
  options = one_batch();
  options.head = HeadMode::kTokens;
  CHECK(refusal(options) == "head = tokens:0: expected 1 or more");
}

}  // namespace ferry::test
