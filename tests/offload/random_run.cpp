// SPDX-License-Identifier: Apache-2.0
// Steps follow each other as closely as the script allows; all that is left is read at the end.
#include "offload/random_run.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "core/error.h"
#include "offload/expected_bytes.h"
#include "offload/tiny_model.h"

namespace ferry::test {
namespace {

constexpr double kLr = 1e-2;
constexpr std::uint64_t kWeightSeed = 7;
constexpr std::uint64_t kEvaluated = 99;  // stands for a step in random_batch: none of the script's

template <class T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

std::size_t sum(const std::vector<MemoryLine>& lines) {
  return std::accumulate(lines.begin(), lines.end(), std::size_t{0},
                         [](std::size_t total, const MemoryLine& line) { return total + line.size_bytes; });
}

std::string memory_fault(const Engine& engine, const Backend& backend) {
  const std::size_t device = sum(engine.device_memory());
  const std::size_t host = sum(engine.host_memory());
  if (device == backend.device_bytes() && host == backend.host_bytes()) return "";
  return fmt::format("the plan has {} bytes on the device and {} on the host, allocated are {} and {}; ", device, host,
                     backend.device_bytes(), backend.host_bytes());
}

class ScriptRun {
 public:
  ScriptRun(Backend& backend, const RandomConfig& config, const EngineOptions& options)
      : backend_(backend), config_(config), options_(options), engine_(backend, config.model, options) {}

  RunResult run() {
    result_.fault += memory_fault(engine_, backend_);
    engine_.initialize(kWeightSeed);
    for (std::size_t i = 0; i < config_.script.size(); ++i) train(i);
    for (std::int64_t step = 0; step < n_steps_; ++step) read_step(step);
    read_arrays();
    result_.fault += memory_fault(engine_, backend_);
    return std::move(result_);
  }

 private:
  Batch batch_of(const ScriptStep& script, std::size_t seed) const {
    return random_batch(config_.model, script.batch_size, script.seq_len, seed);
  }

  void train(std::size_t index) {
    const ScriptStep& script = config_.script[index];
    const Batch batch = batch_of(script, index);
    const ScriptStep& after = config_.script[std::min(index + 1, config_.script.size() - 1)];
    const Batch next = batch_of(after, script.next == NextBatch::kKnown ? index + 1 : kEvaluated);
    const std::int64_t step = engine_.train_step(batch, kLr, script.next == NextBatch::kUnknown ? nullptr : &next);
    expected_.push_back(expected_bytes(engine_.parameters(), config_.model, options_, batch, pass_since_step_));
    pass_since_step_ = script.evaluate || script.logits_after > 0;
    ++n_steps_;
    if (script.read_loss) engine_.loss(step);
    if (script.read_stats) engine_.stats(step);
    if (script.evaluate) {
      const double loss = engine_.evaluate(random_batch(config_.model, script.batch_size, script.seq_len, kEvaluated));
      keep(fmt::format("evaluation after step {}", step), loss);
    }
    if (script.logits_after > 0) {
      const auto ids =
          std::span(batch.inputs).first(static_cast<std::size_t>(std::min(script.logits_after, script.seq_len)));
      const std::vector<float> logits = engine_.next_logits(ids);
      result_.bits[fmt::format("logits after step {}", step)] = bytes_of(std::span(logits));
    }
  }

  void read_step(std::int64_t step) {
    const double loss = engine_.loss(step);
    const StepStats stats = engine_.stats(step);
    keep(fmt::format("loss of step {}", step), loss);
    keep(fmt::format("norm of step {}", step), stats.grad_norm);
    keep(fmt::format("coefficient of step {}", step), stats.coefficient);
    keep(fmt::format("verdict of step {}", step), stats.applied ? 1 : 0);
    if (step == 0) {
      result_.first_loss = loss;
      result_.first_norm = stats.grad_norm;
    }
    const auto& [least, most, up] = expected_[static_cast<std::size_t>(step)];
    if (stats.h2d_bytes >= least && stats.h2d_bytes <= most && stats.d2h_bytes == up) return;
    result_.fault += fmt::format("step {} moves {} bytes down and {} up, expected {} to {} down and {} up; ", step,
                                 stats.h2d_bytes, stats.d2h_bytes, least, most, up);
  }

  void read_arrays() {
    result_.bits["weights"] = snapshot(engine_, ParameterArray::kWeight);
    result_.bits["low halves"] = snapshot(engine_, ParameterArray::kWeightLow);
    result_.bits["first moments"] = snapshot(engine_, ParameterArray::kFirstMoment);
    result_.bits["second moments"] = snapshot(engine_, ParameterArray::kSecondMoment);
  }

  void keep(const std::string& name, double value) {
    result_.bits[name] = bytes_of(std::span<const double>(&value, 1));
  }

  Backend& backend_;
  const RandomConfig& config_;
  const EngineOptions& options_;
  Engine engine_;
  RunResult result_;
  std::vector<StepBytes> expected_;
  std::int64_t n_steps_ = 0;
  bool pass_since_step_ = false;
};

}  // namespace

RunResult run_script(Backend& backend, const RandomConfig& config, const EngineOptions& options) {
  return ScriptRun(backend, config, options).run();
}

std::string difference(const Bits& got, const Bits& want) {
  for (const auto& [name, bits] : want) {
    const auto it = got.find(name);
    if (it == got.end() || it->second != bits) return name;
  }
  return got.size() == want.size() ? "" : "the number of results";
}

}  // namespace ferry::test
