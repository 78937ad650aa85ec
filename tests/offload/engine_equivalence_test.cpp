// SPDX-License-Identifier: Apache-2.0
// Offloaded, resident, any slots, threads and pieces: the same bits.
#include <cmath>

#include "catch.h"
#include "offload/engine_checks.h"

namespace ferry::test {

TEST_CASE("offloaded training gives the bits of resident training") { check_offloaded_equals_resident("cpu"); }

TEST_CASE("slots, threads and piece sizes do not change a bit") { check_layout_changes_no_bit("cpu"); }

TEST_CASE("what is kept and what is computed again does not change a bit") {
  check_recomputation_changes_no_bit("cpu");
}

TEST_CASE("micro-batches, even uneven ones with masked targets, change gradients by rounding only") {
  check_accumulation_changes_rounding_only("cpu");
}

TEST_CASE("keeping the logits of a single micro-batch does not change a bit") {
  EngineOptions options = several_pieces(DType::kBf16, OptimizerState::kF32);
  const TrainedBits reference = train("cpu", 2, true, options);
  options.head = HeadMode::kLogits;
  CHECK(train("cpu", 2, true, options) == reference);
}

TEST_CASE("where segments live changes no bit, clipped or not, frozen or not") {
  check_placement_changes_no_bit("cpu");
}

TEST_CASE("synchronous streams give the same bits") {
  const bool tied = GENERATE(true, false);
  const EngineOptions options = several_pieces(DType::kBf16, OptimizerState::kF32);
  CHECK(train("cpu:sync", 1, tied, options) == train("cpu", 2, tied, options));
}

TEST_CASE("training lowers the loss of a batch that it sees again and again") {
  const auto backend = create_backend("cpu", {.threads = 2});
  const ModelConfig config = small_config(true);
  Engine engine(*backend, config, several_pieces(DType::kBf16, OptimizerState::kF32));
  engine.initialize(1);
  const Batch batch = random_batch(config, 3, 17, 0);
  const double first = engine.loss(engine.train_step(batch, 1e-2));
  double last = first;
  for (int step = 0; step < 40; ++step) last = engine.loss(engine.train_step(batch, 1e-2));
  CHECK(last < 0.5 * first);
}

TEST_CASE("vocabulary chunks change the result by rounding only") {
  EngineOptions options = several_pieces(DType::kF32, OptimizerState::kF32);
  const TrainedBits reference = train("cpu", 2, true, options);
  options.vocab_chunk = 61;
  const TrainedBits whole = train("cpu", 2, true, options);
  for (std::size_t i = 0; i < reference.losses.size(); ++i) {
    CHECK(std::abs(whole.losses[i] - reference.losses[i]) < 1e-4 * reference.losses[i]);
  }
}

}  // namespace ferry::test
