// SPDX-License-Identifier: Apache-2.0
// Tests of train/trainer.h on a very small model.
#include "train/trainer.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "thrown.h"
#include "train/tiny_run.h"

using namespace ferry;
using namespace ferry::test;

namespace {

const auto kNeverStop = [] { return false; };

TrainerOptions options(std::int64_t steps) {
  TrainerOptions result;
  result.schedule.steps = steps;
  result.schedule.lr = 1e-2;
  result.log_every = 5;
  result.byte_vocabulary = true;
  return result;
}

/// A run whose reports are kept.
struct Recorded : TinyRun {
  Progress progress{stderr, Progress::Mode::kQuiet};
  BatchLoader train{sequences(200), {.batch_size = kBatchSize}};
  EvaluationBatches val{sequences(40), kBatchSize};
  MetricsFile metrics{folder.path() / "metrics.jsonl"};

  TrainerParts parts() {
    return {.engine = *engine, .train_data = train, .val_data = &val, .progress = progress, .metrics = &metrics};
  }

  std::vector<nlohmann::json> lines(const std::string& kind) const {
    std::vector<nlohmann::json> found;
    std::ifstream file(folder.path() / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json["kind"] == kind) found.push_back(json);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("a small model learns a simple text") {
  Recorded run;
  const TrainResult result = Trainer(run.parts(), options(150)).run(kNeverStop);
  CHECK_FALSE(result.interrupted);
  CHECK(result.steps == 150);
  CHECK(result.train_curve.size() == 150);
  CHECK(result.train_curve.front().loss == Approx(std::log(256)).epsilon(0.02));
  CHECK(result.loss < 2.5);
  REQUIRE(result.last_eval);
  CHECK(result.last_eval->val_loss < 2.5);
  CHECK(result.last_eval->step == 150);
}

TEST_CASE("losses are the engine's own, step by step, at the schedule's learning rates") {
  Recorded run;
  TrainerOptions with_warmup = options(12);
  with_warmup.schedule.schedule = Schedule::kCosine;
  with_warmup.schedule.warmup_steps = 3;
  const TrainResult result = Trainer(run.parts(), with_warmup).run(kNeverStop);

  Recorded other;
  Batch batch;
  for (std::int64_t i = 0; i < 12; ++i) {
    other.train.next(batch);
    const std::int64_t number = other.engine->train_step(batch, learning_rate(with_warmup.schedule, i));
    CHECK(other.engine->loss(number) == result.train_curve[static_cast<std::size_t>(i)].loss);
  }
  CHECK(fingerprint(*run.engine) == fingerprint(*other.engine));
}

TEST_CASE("metrics come at the first step, every log_every steps and the last") {
  Recorded run;
  Trainer(run.parts(), options(12)).run(kNeverStop);
  const auto lines = run.lines("train");
  REQUIRE(lines.size() == 4);
  const std::vector<int> steps = {1, 5, 10, 12};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    CHECK(lines[i]["step"] == steps[i]);
    CHECK(lines[i]["tokens"] == steps[i] * TinyRun::kBatchSize * TinyRun::kSeqLen);
    CHECK(lines[i]["device_bytes"] == run.backend->device_bytes());
  }
}

TEST_CASE("the first step is not counted in the speed") {
  Recorded run;
  const TrainResult result = Trainer(run.parts(), options(1)).run(kNeverStop);
  CHECK_FALSE(result.tokens_per_s);
  CHECK(run.lines("train").at(0)["tokens_per_s"].is_null());
}

TEST_CASE("evaluation comes every eval_every steps and once at the end") {
  Recorded run;
  TrainerOptions often = options(10);
  often.eval_every = 5;
  const TrainResult result = Trainer(run.parts(), often).run(kNeverStop);
  REQUIRE(result.val_curve.size() == 2);
  CHECK(result.val_curve[0].step == 5);
  CHECK(result.val_curve[1].step == 10);
  CHECK(run.lines("eval").size() == 2);
}

TEST_CASE("evaluation reads all validation data, or as many tokens as asked for") {
  Recorded run;
  TrainerOptions all = options(1);
  const TrainResult result = Trainer(run.parts(), all).run(kNeverStop);
  CHECK(result.last_eval->val_tokens == run.val.sequences().n_sequences() * TinyRun::kSeqLen);
  Recorded few;
  all.eval_tokens = 1;
  CHECK(Trainer(few.parts(), all).run(kNeverStop).last_eval->val_tokens == TinyRun::kBatchSize * TinyRun::kSeqLen);
}

TEST_CASE("evaluation changes nothing in training") {
  Recorded run;
  TrainerOptions often = options(6);
  Trainer(run.parts(), often).run(kNeverStop);
  Recorded other;
  often.eval_every = 1;
  Trainer(other.parts(), often).run(kNeverStop);
  CHECK(fingerprint(*run.engine) == fingerprint(*other.engine));
}

TEST_CASE("a run without validation data is not evaluated") {
  Recorded run;
  TrainerParts parts = run.parts();
  parts.val_data = nullptr;
  parts.metrics = nullptr;
  CHECK_FALSE(Trainer(parts, options(2)).run(kNeverStop).last_eval);
}

TEST_CASE("a stop ends after whole steps, with the weights of a run of that length") {
  Recorded run;
  int asked = 0;
  const TrainResult result = Trainer(run.parts(), options(100)).run([&] { return asked++ == 7; });
  CHECK(result.interrupted);
  CHECK(result.steps == 7);
  CHECK(result.train_curve.size() == 7);
  CHECK_FALSE(result.last_eval);

  Recorded straight;
  Trainer(straight.parts(), options(7)).run(kNeverStop);
  CHECK(fingerprint(*run.engine) == fingerprint(*straight.engine));
}

TEST_CASE("a stop before the first step leaves the weights as they were") {
  Recorded run;
  const auto before = fingerprint(*run.engine);
  const TrainResult result = Trainer(run.parts(), options(3)).run([] { return true; });
  CHECK(result.interrupted);
  CHECK(result.steps == 0);
  CHECK(fingerprint(*run.engine) == before);
}

TEST_CASE("a loss that is not finite ends the run with step, loss, lr and advice") {
  Recorded run;
  const std::vector<float> bad(1, NAN);
  run.engine->set_parameter(run.engine->parameters().parameters().size() - 1, 0, bad);  // the final norm
  const std::string message = thrown([&] { Trainer(run.parts(), options(5)).run(kNeverStop); });
  CHECK(message.starts_with("device: the loss of step 1 is nan: training diverged at lr 0.01"));
}

TEST_CASE("lengths below 1 are refused") {
  Recorded run;
  CHECK(thrown([&] { Trainer(run.parts(), options(0)); }) == "config: a run of 0 steps: expected 1 or more");
  TrainerOptions never = options(1);
  never.log_every = 0;
  CHECK(thrown([&] { Trainer(run.parts(), never); }) == "config: log_every is 0, expected 1 or more");
}
