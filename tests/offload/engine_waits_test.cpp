// SPDX-License-Identifier: Apache-2.0
// Every place where the engine waits is needed: with one of its waits dropped, some configuration has a race.
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "backend/trace_backend.h"
#include "catch.h"
#include "core/error.h"
#include "offload/forwarding_backend.h"
#include "offload/parallel_runs.h"
#include "offload/random_run.h"
#include "offload/tiny_model.h"

namespace ferry::test {
namespace {

/// The code that called wait or sync; null for the watcher's.
using Site = const void*;

/// Remembers the sites of the waits of the thread that made it.
class SiteRecorder final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void wait(StreamRef stream, EventRef event) override {
    note(__builtin_return_address(0));
    ForwardingBackend::wait(stream, event);
  }
  using ForwardingBackend::sync;
  void sync(EventRef event) override {
    note(__builtin_return_address(0));
    ForwardingBackend::sync(event);
  }
  const std::vector<Site>& sites() const { return sites_; }

 private:
  void note(Site site) {
    if (std::this_thread::get_id() == launcher_) sites_.push_back(site);
  }

  const std::thread::id launcher_ = std::this_thread::get_id();
  std::vector<Site> sites_;
};

constexpr const char* kLauncher = "host thread 0";  // the first to call the backend
bool is_watcher(const TraceWait& wait) { return wait.waiter.starts_with("host") && wait.waiter != kLauncher; }
/// Engine::stats: elapsed_ms needs an event that is reached, and reads nothing that the trace knows of.
bool is_clock(const TraceWait& wait) { return wait.waiter == kLauncher && wait.recorder == "stream compute"; }

struct Tally {
  int dropped = 0;
  int added_order = 0;
  int found = 0;
  std::string example;
};

class Sweep {
 public:
  /// Runs `config` with wait `dropped` dropped, or with none. Returns the number of its waits.
  std::int64_t run(const RandomConfig& config, std::int64_t dropped) {
    const std::string drop = dropped < 0 ? "" : fmt::format(",drop_wait={}", dropped);
    SiteRecorder backend(create_backend("trace:cpu,slow=copies" + drop, {.threads = 1}));
    bool found = false;
    try {
      run_script(backend, config, config.options);
    } catch (const Error& failure) {
      found = std::string(failure.what()).find(": a race in ") != std::string::npos;
      if (!found) throw;
    }
    const std::vector<TraceWait> waits = trace_report(backend.inner()).waits;
    std::size_t launched = 0;
    for (const TraceWait& wait : waits) {
      const Site site = is_watcher(wait) ? nullptr : backend.sites().at(launched++);
      if (wait.dropped && !is_clock(wait)) count(site, wait, found);
    }
    return static_cast<std::int64_t>(waits.size());
  }

  std::map<Site, Tally> tallies() {
    const std::scoped_lock lock(mutex_);
    return tallies_;
  }

 private:
  void count(const Site& site, const TraceWait& wait, bool found) {
    const std::scoped_lock lock(mutex_);
    Tally& tally = tallies_[site];
    ++tally.dropped;
    tally.added_order += wait.adds_order ? 1 : 0;
    tally.found += found ? 1 : 0;
    if (wait.adds_order || tally.example.empty()) tally.example = wait.text;
  }

  std::mutex mutex_;
  std::map<Site, Tally> tallies_;  // guarded by mutex_
};

RandomConfig base(bool tied) {
  RandomConfig config;
  config.model = small_config(tied);
  config.model.n_layers = 4;
  EngineOptions& options = config.options;
  options.batch_size = 2;
  options.seq_len = 5;
  options.vocab_chunk = 22;
  options.piece_bytes = 5000;
  options.threads = 1;
  config.script = {{.batch_size = 2, .seq_len = 5, .evaluate = true, .logits_after = 3},
                   {.batch_size = 2, .seq_len = 5},
                   {.batch_size = 1, .seq_len = 5}};
  return config;
}

/// What needs which wait: a table on the device, residuals on the host, norms without rows, an eager or a held update.
std::vector<RandomConfig> configs_to_sweep() {
  std::vector<RandomConfig> configs;
  const auto add = [&](bool tied, const std::function<void(EngineOptions&)>& change) {
    RandomConfig config = base(tied);
    change(config.options);
    config.seed = configs.size();
    configs.push_back(std::move(config));
  };
  add(false, [](EngineOptions&) {});
  add(true, [](EngineOptions& options) {
    options.residuals = Residuals::kHost;
    options.resident_layers = 2;
  });
  add(false, [](EngineOptions& options) { options.resident_state_layers = 4; });
  add(true, [](EngineOptions& options) {
    options.offload = Offload::kLayers;
    options.resident_layers = 1;
  });
  add(false, [](EngineOptions& options) { options.grad_clip = 0.1; });
  add(true, [](EngineOptions& options) {
    options.offload = Offload::kLayers;
    options.freeze = {"model.embed_tokens.weight", "model.layers.*"};
  });
  add(false, [](EngineOptions& options) {
    options.offload = Offload::kNone;
    options.head = HeadMode::kTokens;
    options.head_tokens = 4;
  });
  add(true, [](EngineOptions& options) {
    options.batch_size = 1;
    options.accumulate = 2;
    options.check_finite = false;
    options.resident_state_layers = 1;
  });
  return configs;
}

}  // namespace

TEST_CASE("wherever the engine waits, some dropped wait is found as a race") {
  Sweep sweep;
  std::vector<NamedRun> runs;
  for (const RandomConfig& config : configs_to_sweep()) {
    const std::int64_t n_waits = sweep.run(config, -1);
    for (std::int64_t dropped = 0; dropped < n_waits; ++dropped) {
      const auto run = [&sweep, config, dropped] {
        sweep.run(config, dropped);
        return std::string();
      };
      runs.push_back({fmt::format("wait {} of {}", dropped, config.describe()), run});
    }
  }
  for (const std::string& fault : run_all(runs, 16)) FAIL_CHECK(fault);
  const auto tallies = sweep.tallies();
  for (const auto& [site, tally] : tallies) {
    CAPTURE(tally.example, tally.dropped, tally.added_order);
    CHECK(tally.found > 0);
  }
}

}  // namespace ferry::test
