// SPDX-License-Identifier: Apache-2.0
// A small pipeline in which every wait is needed: dropped waits are found, and no timing changes a verdict.
#include <algorithm>
#include <vector>

#include "backend/trace_backend.h"
#include "catch.h"
#include "thrown.h"

using namespace ferry;

namespace {

constexpr int kRounds = 3;
constexpr std::int64_t kElems = 64;
constexpr std::size_t kBytes = kElems * sizeof(float);

struct Outcome {
  std::string failure;
  std::vector<float> results;
  TraceReport report;
};

/// Host memory to the device, through one op, and back, with one buffer of each kind that all rounds share.
class Pipeline {
 public:
  explicit Pipeline(const std::string& name) : backend_(create_backend(name, {.threads = 1})) {}

  Outcome run(bool forget_reuse) {
    Outcome outcome;
    outcome.failure = thrown([&] {
      for (int round = 0; round < kRounds; ++round) run_round(round, round > 0 && !forget_reuse);
      backend_->sync(y_free_.get());
      backend_->host_access(Access::kRead, out_.data(), out_.size_bytes(), "use of results");
      const auto* results = static_cast<const float*>(out_.data());
      outcome.results.assign(results, results + kRounds * kElems);
    });
    outcome.report = trace_report(*backend_);
    return outcome;
  }

 private:
  void run_round(int round, bool reuse) {
    if (reuse) backend_->sync(in_free_.get());
    backend_->host_access(Access::kWrite, in_.data(), kBytes, "preparation");
    std::fill_n(static_cast<float*>(in_.data()), kElems, static_cast<float>(round + 1));

    if (reuse) backend_->wait(h2d_.get(), x_free_.get());
    backend_->copy(h2d_.get(), x_.data(), in_.data(), kBytes, CopyDirection::kHostToDevice);
    backend_->record(in_free_.get(), h2d_.get());

    backend_->wait(compute_.get(), in_free_.get());
    if (reuse) backend_->wait(compute_.get(), y_free_.get());
    const TensorView x(x_.data(), DType::kF32, {kElems}), y(y_.data(), DType::kF32, {kElems});
    backend_->enqueue(compute_.get(), Cast{.x = x, .y = y});
    backend_->record(x_free_.get(), compute_.get());

    backend_->wait(d2h_.get(), x_free_.get());
    backend_->copy(d2h_.get(), static_cast<std::byte*>(out_.data()) + static_cast<std::size_t>(round) * kBytes,
                   y_.data(), kBytes, CopyDirection::kDeviceToHost);
    backend_->record(y_free_.get(), d2h_.get());
  }

  std::unique_ptr<Backend> backend_;
  Buffer in_ = backend_->allocate_host(kBytes, "input"), out_ = backend_->allocate_host(kRounds * kBytes, "output");
  Buffer x_ = backend_->allocate_device(kBytes, "x"), y_ = backend_->allocate_device(kBytes, "y");
  std::unique_ptr<Event> in_free_ = backend_->create_event(), x_free_ = backend_->create_event(),
                         y_free_ = backend_->create_event();
  std::unique_ptr<Stream> h2d_ = backend_->create_stream("h2d"), compute_ = backend_->create_stream("compute"),
                          d2h_ = backend_->create_stream("d2h");
};

Outcome run(const std::string& name, bool forget_reuse = false) { return Pipeline(name).run(forget_reuse); }

}  // namespace

TEST_CASE("a pipeline that waits for all that it must passes, and gives its results") {
  const Outcome outcome = run("trace:cpu");
  CHECK(outcome.failure.empty());
  CHECK(outcome.report.n_ops == kRounds);
  CHECK(outcome.report.n_copies == 2 * kRounds);
  CHECK(outcome.report.waits.size() == 5 * kRounds - 2);
  REQUIRE(outcome.results.size() == kRounds * kElems);
  for (std::size_t i = 0; i < outcome.results.size(); ++i) {
    CHECK(outcome.results[i] == static_cast<float>(i / kElems + 1));
  }
}

TEST_CASE("every wait of the pipeline is missed when it is dropped") {
  const std::size_t n_waits = run("trace:cpu").report.waits.size();
  for (std::size_t n = 0; n < n_waits; ++n) {
    const Outcome outcome = run("trace:cpu,drop_wait=" + std::to_string(n));
    REQUIRE(outcome.report.waits.size() > n);
    CAPTURE(outcome.report.waits[n].text);
    CHECK(outcome.report.waits[n].dropped);
    CHECK(outcome.report.waits[n].adds_order);
    CHECK(outcome.failure.find("device: trace:cpu: a race in ") == 0);
  }
  CHECK(run("trace:cpu,drop_wait=" + std::to_string(n_waits)).failure.empty());
}

TEST_CASE("pauses change neither a verdict nor a result") {
  const Outcome right = run("trace:cpu");
  const Outcome wrong = run("trace:cpu", true);
  CHECK(wrong.failure.find("device: trace:cpu: a race in input: copy 0, host to device on stream h2d reads its source, "
                           "bytes 0 to 255; preparation on host thread 0 writes host memory, bytes 0 to 255; ") == 0);
  for (int seed = 1; seed <= 20; ++seed) {
    const std::string name = "trace:cpu,delay=" + std::to_string(seed);
    CAPTURE(name);
    const Outcome paused = run(name);
    CHECK(paused.failure.empty());
    CHECK(paused.results == right.results);
    CHECK(run(name, true).failure == wrong.failure);
  }
  CHECK(run("trace:cpu,slow=copies").results == right.results);
}
