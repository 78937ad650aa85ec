// SPDX-License-Identifier: Apache-2.0
// Random configurations of the engine on a backend that looks for races: whatever is switched on, nothing is unordered,
// memory and copies are as planned, and the bits are those of training on the device alone.
#include <chrono>
#include <cmath>
#include <string_view>
#include <thread>

#include "backend/trace_backend.h"
#include "catch.h"
#include "core/error.h"
#include "offload/delayed_backend.h"
#include "offload/forwarding_backend.h"
#include "offload/parallel_runs.h"
#include "offload/random_run.h"

namespace ferry::test {
namespace {

constexpr std::uint64_t kConfigs = 300;

/// AdamW takes a while.
class SlowOptimizer final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void host_access(Access how, const void* data, std::size_t size_bytes, const char* label) override {
    if (std::string_view(label) == "weights in AdamW") std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ForwardingBackend::host_access(how, data, size_bytes, label);
  }
};

std::unique_ptr<Backend> trace(const std::string& options) {
  return create_backend("trace:cpu" + options, {.threads = 1});
}

RunResult resident(const RandomConfig& config) {
  const auto backend = create_backend("cpu:sync", {.threads = 1});
  return run_script(*backend, config, config.resident());
}

/// Faults of a run, and of its results against those of the device alone.
std::string compare(Backend& backend, const RandomConfig& config, const EngineOptions& options) {
  const RunResult got = run_script(backend, config, options);
  const std::string other = difference(got.bits, resident(config).bits);
  return got.fault + (other.empty() ? "" : other + " differs from offload = none");
}

/// Loss and gradient of the first step, against one micro-batch without cuts.
std::string compare_arithmetic(const RandomConfig& config) {
  RandomConfig first = config;
  first.script = {{.batch_size = config.options.max_sequences(), .seq_len = config.options.seq_len}};
  const auto backend = create_backend("cpu:sync", {.threads = 1});
  const RunResult cut = run_script(*backend, first, config.resident());
  const RunResult plain = run_script(*backend, first, config.plain_arithmetic());
  const double tolerance = config.options.dtype == DType::kF32 ? 1e-5 : 2e-2;
  const auto near = [&](double got, double want) {
    return std::isnan(want) ? std::isnan(got) : std::abs(got - want) <= tolerance * std::abs(want);
  };
  if (near(cut.first_loss, plain.first_loss) && near(cut.first_norm, plain.first_norm)) return "";
  return fmt::format("loss {} and norm {}, without cuts {} and {}", cut.first_loss, cut.first_norm, plain.first_loss,
                     plain.first_norm);
}

void check_all(const std::function<std::string(const RandomConfig&)>& check, int n_threads) {
  const auto [first, count] = seeds_to_run(kConfigs);
  std::vector<NamedRun> runs;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const RandomConfig config = random_config(seed);
    runs.push_back({config.describe(), [config, check] { return check(config); }});
  }
  const std::vector<std::string> faults = run_all(runs, n_threads);
  for (const std::string& fault : faults) FAIL_CHECK(fault);
  CHECK(faults.empty());
}

}  // namespace

TEST_CASE("random configurations have no race, move what is planned and give the bits of resident training",
          "[random]") {
  check_all([](const RandomConfig& config) { return compare(*trace(""), config, config.options); }, 2);
}

TEST_CASE("random configurations pass with one optimizer thread, a slow optimizer and random delays", "[random]") {
  const auto check = [](const RandomConfig& config) {
    SlowOptimizer backend(trace(fmt::format(",delay={}", config.seed)));
    EngineOptions options = config.options;
    options.threads = 1;
    return compare(backend, config, options);
  };
  check_all(check, 16);
}

TEST_CASE("random configurations pass with slow copies", "[random]") {
  check_all([](const RandomConfig& config) { return compare(*trace(",slow=copies"), config, config.options); }, 16);
}

TEST_CASE("random configurations pass without the race detector, whose locks order threads, with random pauses",
          "[random]") {
  arm({.seed = 1});
  const auto check = [](const RandomConfig& config) {
    return compare(*create_delayed_backend(cpu::Launch::kWorker, 2), config, config.options);
  };
  check_all(check, 16);
  arm({});
}

TEST_CASE("random configurations cut the arithmetic by rounding only", "[random]") { check_all(compare_arithmetic, 2); }

}  // namespace ferry::test
