// SPDX-License-Identifier: Apache-2.0
// The engine's properties on a GPU.
#include "catch.h"
#include "gpu_or_skip.h"
#include "offload/cache_checks.h"
#include "offload/engine_checks.h"

namespace ferry::test {

TEST_CASE("on a GPU, f32 loss is within 1e-5 and each gradient within 1e-4 of PyTorch", "[gpu]") {
  gpu_or_skip();
  check_f32_against_pytorch("cuda");
}

TEST_CASE("on a GPU, bf16 is about as close to the f64 truth as PyTorch's bf16", "[gpu]") {
  gpu_or_skip();
  check_bf16_against_pytorch("cuda");
}

TEST_CASE("on a GPU, evaluation and the logits of the last position agree with PyTorch", "[gpu]") {
  gpu_or_skip();
  check_evaluation_against_pytorch("cuda");
}

TEST_CASE("on a GPU, offloaded training gives the bits of resident training", "[gpu]") {
  gpu_or_skip();
  check_offloaded_equals_resident("cuda");
}

TEST_CASE("on a GPU, slots, threads and piece sizes do not change a bit", "[gpu]") {
  gpu_or_skip();
  check_layout_changes_no_bit("cuda");
}

TEST_CASE("on a GPU, where segments live changes no bit, clipped or not, frozen or not", "[gpu]") {
  gpu_or_skip();
  check_placement_changes_no_bit("cuda");
}

TEST_CASE("on a GPU, gradient norms and clipping match PyTorch", "[gpu]") {
  gpu_or_skip();
  check_norm_against_pytorch("cuda");
}

TEST_CASE("on a GPU, what is kept and what is computed again does not change a bit", "[gpu]") {
  gpu_or_skip();
  check_recomputation_changes_no_bit("cuda");
}

TEST_CASE("on a GPU, micro-batches change gradients by rounding only", "[gpu]") {
  gpu_or_skip();
  check_accumulation_changes_rounding_only("cuda");
}

TEST_CASE("on a GPU, logits from the cache agree with PyTorch", "[gpu]") {
  gpu_or_skip();
  check_cached_logits_against_pytorch("cuda");
}

TEST_CASE("on a GPU, a sequence in any parts gives the logits of the whole", "[gpu]") {
  gpu_or_skip();
  check_any_split_gives_the_logits_of_the_whole("cuda");
}

TEST_CASE("on a GPU, where weights live changes no bit of the logits", "[gpu]") {
  gpu_or_skip();
  check_placement_changes_no_logit("cuda");
}

TEST_CASE("on a GPU, two runs give the same bits", "[gpu]") {
  gpu_or_skip();
  const EngineOptions options = several_pieces(DType::kBf16, OptimizerState::kBf16);
  CHECK(train("cuda", 1, true, options) == train("cuda", 1, true, options));
}

}  // namespace ferry::test
