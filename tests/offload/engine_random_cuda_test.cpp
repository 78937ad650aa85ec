// SPDX-License-Identifier: Apache-2.0
// Random configurations of the engine on a GPU: memory and copies are as planned, and the bits are those of training on
// the device alone.
#include "catch.h"
#include "gpu_or_skip.h"
#include "offload/random_run.h"

namespace ferry::test {

TEST_CASE("on a GPU, random configurations move what is planned and give the bits of resident training", "[gpu]") {
  gpu_or_skip();
  const auto backend = create_backend("cuda", {});
  const auto [first, count] = seeds_to_run(200);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const RandomConfig config = random_config(seed);
    INFO(config.describe());
    const RunResult got = run_script(*backend, config, config.options);
    CHECK(got.fault.empty());
    CHECK(difference(got.bits, run_script(*backend, config, config.resident()).bits).empty());
  }
}

}  // namespace ferry::test
