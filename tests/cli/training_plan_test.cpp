// SPDX-License-Identifier: Apache-2.0
// Option values as pins and budgets, and what is said where memory is short.
#include "cli/training_plan.h"

#include "catch.h"
#include "cli/run_setup.h"
#include "temp_file.h"
#include "thrown.h"
#include "train/rates_file.h"

namespace ferry {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

using Patterns = std::vector<std::string>;

struct Fixture {
  std::unique_ptr<Backend> backend = create_backend("cpu", {.threads = 1});
  RunConfig config;
  MemoryLimits limits;

  Fixture() {
    config.model = "tiny";
    config.seq_len = 128;
  }
  TrainingPlan plan() const { return plan_training(config, model_of(config), *backend, limits); }
  EngineOptions options() const { return plan().step->options; }
  std::string refusal() const {
    return thrown([this] { plan(); });
  }
  std::size_t arena() const { return plan().step->device.memory.arena_bytes(); }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("every option of the plan reaches the engine") {
  Fixture f;
  f.config.offload = RunConfig::Offload::kLayers;
  f.config.grad_clip = 0.5;
  f.config.check_finite = false;
  f.config.freeze = {"*norm*"};
  f.config.weight_slots = 3;
  f.config.grad_slots = 4;
  f.config.vocab_chunk = 100;
  f.config.resident_state_layers = 1;
  f.config.resident_layers = 2;
  f.config.residuals = RunConfig::Residuals::kHost;
  f.config.recompute = "keep:2";
  f.config.mlp_chunk = "features:64";
  f.config.head = "tokens:32";
  f.config.gpu_memory = "min";
  const EngineOptions options = f.options();
  CHECK(options.offload == Offload::kLayers);
  CHECK(options.grad_clip == 0.5);
  CHECK_FALSE(options.check_finite);
  CHECK(options.freeze == f.config.freeze);
  CHECK(options.weight_slots == 3);
  CHECK(options.grad_slots == 4);
  CHECK(options.vocab_chunk == 100);
  CHECK(options.resident_state_layers == 1);
  CHECK(options.resident_layers == 2);
  CHECK(options.residuals == Residuals::kHost);
  CHECK(options.keep_layers == 2);
  CHECK(options.mlp_cut.size == 64);
  CHECK(options.head_tokens == 32);
}

TEST_CASE("a budget that keys of the plan leave unused is named, with the keys") {
  Fixture f;
  f.config.gpu_memory = "4GiB";
  CHECK(f.plan().notes.empty());  // all of the model is on the device
  f.config.resident_state_layers = 0;
  f.config.head = "chunks";
  const auto notes = f.plan().notes;
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].starts_with("gpu_memory = 4GiB leaves 4.0 GiB unused, with resident_state_layers, head given"));
  f.config.gpu_memory = std::to_string(f.arena() + 1000) + "B";
  CHECK(f.plan().notes.empty());
  f.config.gpu_memory = "auto";
  f.limits.device_bytes = 8 * kGiB;
  CHECK(f.plan().notes.empty());
}

TEST_CASE("a plan is made by the rates of a file, and says whose they are") {
  const TempFolder folder;
  Fixture f;
  CHECK(f.plan().rates == MachineRates{});
  CHECK(f.plan().measured.empty());
  RatesFile file{.rates = {}, .backend = "cpu", .description = "a slow\nhost", .date = "2026-11-30", .threads = 3};
  file.rates.adamw_bytes_s = file.rates.host_bytes_s = 1e6;
  f.config.rates = folder.write("rates.json", to_json(file)).string();
  const TrainingPlan plan = f.plan();
  CHECK(plan.rates == file.rates);
  CHECK(plan.forecast.host_s == Approx((plan.forecast.adamw_bytes + plan.forecast.copied_bytes) / 1e6));
  CHECK(has(plan.measured, "rates.json: a slow\\x0ahost, 2026-11-30"));
  f.config.rates = (folder.path() / "absent.json").string();
  CHECK(has(f.refusal(), "absent.json"));
  // A forward pass has nothing to choose by them.
  CHECK_NOTHROW(plan_training(f.config, model_of(f.config), *f.backend, f.limits, Passes::kForward));
}

TEST_CASE("patterns that freeze everything are refused where something is trained") {
  Fixture f;
  for (const Patterns& patterns : {Patterns{"*"}, Patterns{"model.layers.*", "*norm*", "*embed*"}}) {
    f.config.freeze = patterns;
    const std::string message = f.refusal();
    INFO(message);
    CHECK(has(message, "config: freeze = [\"" + patterns.front() + "\""));
    CHECK(has(message, "parameters, nothing is left to train: leave out a pattern"));
    CHECK_NOTHROW(plan_training(f.config, model_of(f.config), *f.backend, f.limits, Passes::kForward));
  }
  f.config.freeze = {"model.layers.*", "*embed*"};
  CHECK(f.refusal().empty());
}

TEST_CASE("a forward pass is planned without gradients and optimizer state") {
  const Fixture f;
  const auto plan = plan_training(f.config, model_of(f.config), *f.backend, f.limits, Passes::kForward);
  CHECK_FALSE(plan.step->options.training);
  CHECK(plan.step->host.memory.total_bytes() < f.plan().step->host.memory.total_bytes() / 3);
}

TEST_CASE("where device memory is the host's, auto keeps nothing that need not be") {
  const Fixture f;
  CHECK(f.options().resident_state_layers == 0);
  CHECK(f.options().keep_layers == 0);
}

TEST_CASE("auto takes what is free, less what libraries need") {
  Fixture f;
  f.limits.device_bytes = kGiB;
  CHECK(f.options().resident_state_layers == 5);
  const std::size_t everything = f.arena();
  f.limits.device_bytes = kDeviceReserveBytes + everything / 2;
  CHECK(f.arena() <= everything / 2);
  f.limits.device_bytes = kDeviceReserveBytes + 1000;
  const std::string message = f.refusal();
  INFO(message);
  CHECK(has(message,
            "memory: gpu_memory = auto: 512 MiB of device memory are free, 512 MiB of them are for libraries: "
            "the smallest plan of 4 x 128 tokens takes"));
}

TEST_CASE("a size is obeyed, and one that is too small says which would do") {
  Fixture f;
  f.config.gpu_memory = "min";
  const std::size_t least = f.arena();
  f.config.gpu_memory = "20MB";
  CHECK(f.arena() <= 20'000'000);
  CHECK(f.options().resident_state_layers > 0);
  f.config.gpu_memory = "100kB";
  const std::string message = f.refusal();
  INFO(message);
  CHECK(has(message, "memory: gpu_memory = 100kB: the smallest plan of 4 x 128 tokens takes"));
  CHECK(has(message, "(" + std::to_string(least) + " bytes): raise gpu_memory, or lower batch_size"));
  f.config.gpu_memory = std::to_string(least) + "B";
  CHECK(f.arena() == least);
}

TEST_CASE("host memory that is too small is refused with a table") {
  Fixture f;
  f.config.host_memory = "10MiB";
  std::string message = f.refusal();
  INFO(message);
  CHECK(has(message, "memory: host_memory = 10MiB, the plan needs "));
  CHECK(has(message, "low halves of the f32 masters 1.8 MiB"));
  CHECK(message.ends_with(
      "): raise host_memory, keep more on the device (offload, resident_state_layers), set optimizer_state = mixed or "
      "bf16, freeze parameters, or use a smaller model"));
  f.config.host_memory = "1GiB";
  CHECK(f.refusal().empty());
  f.config.host_memory = "auto";
  f.limits.host_bytes = 1 << 20;
  message = f.refusal();
  CHECK(has(message, "memory: host_memory = auto: 1.0 MiB are available, the plan needs "));
  CHECK(has(message, "): free host memory, keep more on the device (offload, resident_state_layers), set optimizer"));
  f.limits.device_is_host = true;  // what is kept there is no less
  CHECK(has(f.refusal(), "): free host memory, set optimizer_state = mixed or bf16, freeze parameters, or use a "));
  const std::string forward =
      thrown([&] { plan_training(f.config, model_of(f.config), *f.backend, f.limits, Passes::kForward); });
  CHECK(forward.ends_with("): free host memory, or use a smaller model"));
}

TEST_CASE("device memory that is the host's counts for what is available") {
  Fixture f;
  f.limits.host_bytes = f.plan().step->host.memory.total_bytes() + 1;
  CHECK(f.refusal().empty());
  f.limits.device_is_host = true;
  CHECK(has(f.refusal(), "the device's"));
}

TEST_CASE("a choice that changes the order of sums is said") {
  Fixture f;
  f.config.model = "llama-3.2-1b";
  f.config.seq_len = 2048;
  CHECK(f.plan().notes.empty());
  f.config.gpu_memory = "min";
  const auto notes = f.plan().notes;
  REQUIRE(notes.size() == 2);
  CHECK(notes[0] == "mlp_chunk = features:256 (gpu_memory = min): sums run in another order than with more memory");
  CHECK(notes[1].starts_with("vocab_chunk = "));
}

}  // namespace
}  // namespace ferry
