// SPDX-License-Identifier: Apache-2.0
// Tests of train/trainer.h on a very small model.
#include "train/trainer.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "catch.h"
#include "thrown.h"
#include "train/tiny_run.h"

using namespace ferry;
using namespace ferry::test;

namespace {

const auto kNeverStop = [] { return false; };

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

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

  /// 40 sequences of raw ids; the last is outside of the vocabulary.
  SequenceSet damaged() const {
    std::string ids;
    for (std::int64_t i = 0; i < 40 * (kSeqLen + 1); ++i) ids += std::string("a\0", 2);
    ids.back() = '\7';
    return SequenceSet({{folder.write("damaged.bin", ids), TokenFormat::kRawU16}}, kSeqLen, config.vocab_size);
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

TEST_CASE("a damaged batch ends the run with the weights of the steps before it") {
  Recorded run;
  run.train = BatchLoader(run.damaged(), {.batch_size = TinyRun::kBatchSize});
  const TrainResult result = Trainer(run.parts(), options(100)).run(kNeverStop);
  CHECK(contains(thrown([&] { std::rethrow_exception(result.error); }), "token 1889 at position 679 is outside"));
  CHECK_FALSE(result.interrupted);
  CHECK(result.steps == 9);
  CHECK(result.train_curve.size() == 9);
  CHECK_FALSE(result.last_eval);
}

TEST_CASE("a failing evaluation keeps the trained weights and the error") {
  Recorded run;
  run.val = EvaluationBatches(run.damaged(), TinyRun::kBatchSize);
  const TrainResult result = Trainer(run.parts(), options(7)).run(kNeverStop);
  CHECK(contains(thrown([&] { std::rethrow_exception(result.error); }), "is outside of the model's vocabulary"));
  CHECK(result.steps == 7);
  Recorded straight;
  Trainer(straight.parts(), options(7)).run(kNeverStop);
  CHECK(fingerprint(*run.engine) == fingerprint(*straight.engine));
}

TEST_CASE("a metrics file that cannot be written ends the run with whole steps") {
  Recorded run;
  run.metrics = MetricsFile("/dev/full");
  const TrainResult result = Trainer(run.parts(), options(100)).run(kNeverStop);
  CHECK(contains(thrown([&] { std::rethrow_exception(result.error); }), "/dev/full"));
  CHECK(result.steps == 1);
  CHECK(result.train_curve.size() == 1);
}

TEST_CASE("the last step before an error of the data is logged") {
  Recorded late;
  late.train = BatchLoader(late.damaged(), {.batch_size = TinyRun::kBatchSize});  // step 10 fails, 9 is unread
  TrainerOptions all = options(100);
  all.log_every = 1;
  CHECK(Trainer(late.parts(), all).run(kNeverStop).steps == 9);
  CHECK(late.lines("train").back()["step"] == 9);
}

TEST_CASE("a step that is not finite is skipped with clipping, counted and told") {
  Recorded run;
  EngineOptions clipped;
  clipped.dtype = DType::kF32;
  clipped.batch_size = TinyRun::kBatchSize;
  clipped.seq_len = TinyRun::kSeqLen;
  clipped.threads = 1;
  clipped.grad_clip = 1;
  run.engine = std::make_unique<Engine>(*run.backend, run.config, clipped);
  run.engine->initialize(7);
  const auto poison = [&, n = 0]() mutable {
    if (++n == 3) run.engine->set_parameter(0, 0, std::vector<float>(1, NAN));
    return false;
  };
  TrainerParts parts = run.parts();
  parts.val_data = nullptr;
  TrainerOptions all = options(4);
  all.log_every = 1;
  const TrainResult result = Trainer(parts, all).run(poison);
  CHECK(result.skipped_steps == 2);
  const auto lines = run.lines("train");
  REQUIRE(lines.size() == 4);
  CHECK(lines[1]["grad_norm"] > 0);
  CHECK(lines[1]["clip_coefficient"] <= 1);
  CHECK(lines[1]["applied"] == true);
  CHECK(lines[2]["applied"] == false);
  CHECK(lines[3]["skipped_steps"] == 2);
}

TEST_CASE("a trace has the ten steps after the first, or as many as there are") {
  const auto [steps, first, last] = GENERATE(table<int, int, int>({{13, 2, 11}, {11, 2, 11}, {3, 2, 3}, {1, 1, 1}}));
  INFO(steps);
  Recorded run;
  TraceFile trace(run.folder.path() / "trace.json");
  TrainerParts parts = run.parts();
  parts.trace = &trace;
  CHECK_FALSE(std::filesystem::exists(run.folder.path() / "trace.json"));
  CHECK_FALSE(Trainer(parts, options(steps)).run(kNeverStop).error);
  std::ifstream file(run.folder.path() / "trace.json");
  std::set<int> traced;
  const auto json = nlohmann::json::parse(file);
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") traced.insert(event["args"]["step"].get<int>());
  }
  REQUIRE_FALSE(traced.empty());
  CHECK(*traced.begin() == first);
  CHECK(*traced.rbegin() == last);
}

TEST_CASE("a trace that cannot be written ends the run with whole steps") {
  Recorded run;
  std::filesystem::create_directory(run.folder.path() / "gone");
  TraceFile trace(run.folder.path() / "gone" / "trace.json");
  std::filesystem::remove_all(run.folder.path() / "gone");
  TrainerParts parts = run.parts();
  parts.trace = &trace;
  const TrainResult result = Trainer(parts, options(100)).run(kNeverStop);
  CHECK(contains(thrown([&] { std::rethrow_exception(result.error); }), "trace.json"));
  CHECK(result.steps == 12);
  CHECK(run.lines("train").back()["step"] == 10);
  Recorded straight;
  Trainer(straight.parts(), options(12)).run(kNeverStop);
  CHECK(fingerprint(*run.engine) == fingerprint(*straight.engine));
}

TEST_CASE("validation data are checked before training") {
  Recorded run;
  EvaluationBatches damaged(run.damaged(), TinyRun::kBatchSize);
  CHECK(contains(thrown([&] { check_evaluation_data(damaged, 0); }), "is outside of the model's vocabulary"));
  CHECK(thrown([&] { check_evaluation_data(damaged, 1); }) == "");
  run.folder.write("masked.txt", simple_text(4));
  run.folder.write("masked.txt.mask", std::string(simple_text(4).size(), '\0'));
  EvaluationBatches masked(
      SequenceSet({{run.folder.path() / "masked.txt", TokenFormat::kBytes}}, TinyRun::kSeqLen, 256), 1);
  CHECK(contains(thrown([&] { check_evaluation_data(masked, 0); }), "config: val_data holds no valid target"));
}

TEST_CASE("a step without a valid target has no loss in means and curve") {
  Recorded run;
  const std::string text = simple_text(200);
  const auto path = run.folder.write("part.txt", text);
  std::string mask(text.size(), '\1');
  const std::size_t n_masked = TinyRun::kBatchSize * (TinyRun::kSeqLen + 1);
  mask.replace(n_masked, n_masked, n_masked, '\0');  // the second step's
  run.folder.write("part.txt.mask", mask);
  run.train = BatchLoader(SequenceSet({{path, TokenFormat::kBytes}}, TinyRun::kSeqLen, 256),
                          {.batch_size = TinyRun::kBatchSize});
  TrainerParts parts = run.parts();
  parts.val_data = nullptr;
  const TrainResult result = Trainer(parts, options(3)).run(kNeverStop);
  CHECK(result.tokens == 2 * TinyRun::kBatchSize * TinyRun::kSeqLen);
  REQUIRE(result.train_curve.size() == 2);
  CHECK(result.train_curve[1].step == 3);
  CHECK(result.loss == (result.train_curve[0].loss + result.train_curve[1].loss) / 2);
}

TEST_CASE("a stop during an evaluation leaves it without a result") {
  Recorded run;
  int asked = 0;  // 2 times before a step, then in the evaluation
  const TrainResult result = Trainer(run.parts(), options(2)).run([&] { return ++asked > 4; });
  CHECK(result.interrupted);
  CHECK(result.steps == 2);
  CHECK_FALSE(result.last_eval);
  CHECK(run.lines("eval").empty());
}

TEST_CASE("the optimizer's time of the first step is known when it is logged") {
  Recorded run;
  Trainer(run.parts(), options(1)).run(kNeverStop);
  CHECK(run.lines("train").at(0)["adamw_ms"] > 0);
}

TEST_CASE("a run that throws keeps its counts") {
  Recorded run;
  Trainer trainer(run.parts(), options(9));
  const auto poison = [&, n = 0]() mutable {
    if (++n == 4) run.engine->set_parameter(0, 0, std::vector<float>(256 * 16, NAN));
    return false;
  };
  CHECK(contains(thrown([&] { trainer.run(poison); }), "the loss of step 4 is nan"));
  const auto n_read = std::ssize(trainer.result().train_curve);
  CHECK((n_read == 2 || n_read == 3));  // launching step 4 may meet its own loss before that of step 3 is read
  CHECK(trainer.result().tokens == n_read * TinyRun::kBatchSize * TinyRun::kSeqLen);
  CHECK(trainer.result().elapsed_s > 0);
}

TEST_CASE("lengths below 1 are refused") {
  Recorded run;
  CHECK(thrown([&] { Trainer(run.parts(), options(0)); }) == "config: a run of 0 steps: expected 1 or more");
  TrainerOptions never = options(1);
  never.log_every = 0;
  CHECK(thrown([&] { Trainer(run.parts(), never); }) == "config: log_every is 0, expected 1 or more");
}
