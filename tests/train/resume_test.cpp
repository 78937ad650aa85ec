// SPDX-License-Identifier: Apache-2.0
// A resumed run leaves what a run leaves that was never stopped: every bit of weights, optimizer state and log.
#include <cmath>

#include "catch.h"
#include "thrown.h"
#include "train/checkpoint_store.h"
#include "train/resumable_run.h"

using namespace ferry;
using namespace ferry::test;

namespace {

/// Steps 21 to 23 are not finite.
void skip_steps(Engine& engine, std::int64_t step) {
  if (step == 20) engine.set_parameter(0, 3, std::vector<float>(1, NAN));
  if (step == 23) engine.set_parameter(0, 3, std::vector<float>(1, 0.01F));
}

/// Each epoch has 149 sequences in two shards; steps take 4 or 8 of them.
std::vector<RunSpec> specs() {
  std::vector<RunSpec> specs;
  specs.push_back(run_spec("f32, shuffled, evaluated", DType::kF32));
  specs.back().order = SequenceOrder::kShuffled;
  specs.back().eval_every = 8;
  specs.push_back(run_spec("bf16 with exact masters, clipping", DType::kBf16));
  specs.back().engine.grad_clip = 0.5;
  specs.back().tied = false;
  specs.push_back(run_spec("bf16 state, accumulated, shuffled", DType::kBf16));
  specs.back().engine.optimizer_state = OptimizerState::kBf16;
  specs.back().engine.accumulate = 2;
  specs.back().order = SequenceOrder::kShuffled;
  specs.push_back(run_spec("mixed state, rounded at random, skipped steps", DType::kBf16));
  specs.back().engine.optimizer_state = OptimizerState::kMixed;
  specs.back().engine.adamw.rounding = Rounding::kStochastic;
  specs.back().engine.adamw.seed = 5;
  specs.back().engine.grad_clip = 1;
  specs.back().before_step = skip_steps;
  specs.push_back(run_spec("frozen parameters, layers offloaded", DType::kBf16));
  specs.back().engine.freeze = {"model.layers.0.*", "*norm*"};
  specs.back().engine.offload = Offload::kLayers;
  specs.push_back(run_spec("nothing offloaded", DType::kBf16));
  specs.back().engine.offload = Offload::kNone;
  specs.back().engine.grad_clip = 0.5;
  specs.back().tied = false;
  specs.push_back(run_spec("skipped steps", DType::kF32));
  specs.back().engine.grad_clip = 1;
  specs.back().before_step = skip_steps;
  return specs;
}

}  // namespace

TEST_CASE("a run that is resumed at any of its checkpoints leaves the bits of a straight run") {
  for (RunSpec spec : specs()) {
    INFO(spec.name);
    const TempFolder place;
    spec.save_every = 12;
    ResumableRun straight(place.path() / "straight", spec);
    CHECK_FALSE(straight.train().error);
    const RunTrace wanted = straight.trace();
    if (spec.before_step) CHECK(wanted.counts.applied == 57);
    const auto stored = list_checkpoints(ResumableRun::checkpoints(place.path() / "straight"));
    REQUIRE(stored.size() == 5);
    for (const StoredCheckpoint& point : stored) {
      INFO(point.step);
      const Checkpoint checkpoint(point.folder);
      ResumableRun resumed(place.path() / "resumed", spec, &checkpoint);
      resumed.train();
      const RunTrace got = resumed.trace();
      CHECK(got.arrays == wanted.arrays);
      CHECK(got.counts == wanted.counts);
      CHECK(got.state == wanted.state);
      CHECK(got.log == wanted.log);
      CHECK(got.curve == wanted.curve);
    }
  }
}

TEST_CASE("a run that is stopped again and again leaves the bits of a straight run") {
  for (RunSpec spec : specs()) {
    INFO(spec.name);
    spec.save_every = GENERATE(0, 10);
    const TempFolder place;
    ResumableRun straight(place.path() / "straight", spec);
    straight.train();
    const RunTrace wanted = straight.trace();
    for (const std::int64_t stop : {1, 9, 10, 19, 31, 40, 59}) {
      const auto checkpoint = newest_whole_checkpoint(ResumableRun::checkpoints(place.path() / "stopped"));
      ResumableRun run(place.path() / "stopped", spec, checkpoint ? &*checkpoint : nullptr);
      CHECK(run.train(stop).interrupted);
      const std::int64_t saved = list_checkpoints(ResumableRun::checkpoints(place.path() / "stopped")).back().step;
      CHECK((saved == stop || spec.eval_every > 0));  // an evaluation asks for the stop too
    }
    const auto checkpoint = newest_whole_checkpoint(ResumableRun::checkpoints(place.path() / "stopped"));
    ResumableRun last(place.path() / "stopped", spec, &*checkpoint);
    CHECK_FALSE(last.train().interrupted);
    CHECK(last.trace().arrays == wanted.arrays);
    CHECK(last.trace().state == wanted.state);
    CHECK(last.trace().log == wanted.log);
  }
}

TEST_CASE("a stop during an evaluation is made good for by the resumed run") {
  const TempFolder place;
  RunSpec spec = run_spec("evaluated", DType::kF32);
  spec.steps = 8;
  spec.eval_every = spec.save_every = 4;
  ResumableRun straight(place.path() / "straight", spec);
  straight.train();
  {
    ResumableRun stopped(place.path() / "stopped", spec);
    const TrainResult result = stopped.train(5);  // asked before each of 4 steps, then by the evaluation
    CHECK(result.interrupted);
    CHECK(result.steps == 4);
    CHECK(result.val_curve.empty());
  }
  const auto checkpoint = newest_whole_checkpoint(ResumableRun::checkpoints(place.path() / "stopped"));
  REQUIRE(checkpoint);
  CHECK(checkpoint->state().trainer.step == 4);
  ResumableRun resumed(place.path() / "stopped", spec, &*checkpoint);
  resumed.train();
  CHECK(resumed.trace() == straight.trace());
}

TEST_CASE("a finished run goes on where it ended") {
  const TempFolder place;
  RunSpec spec = run_spec("finished", DType::kF32);
  spec.steps = 10;
  spec.save_every = 4;
  spec.keep_last = 2;
  ResumableRun(place.path() / "run", spec).train();
  const auto stored = list_checkpoints(ResumableRun::checkpoints(place.path() / "run"));
  REQUIRE(stored.size() == 2);
  CHECK(stored[0].step == 8);
  CHECK(stored[1].step == 10);
  const Checkpoint checkpoint(stored[1].folder);
  ResumableRun again(place.path() / "run", spec, &checkpoint);
  const TrainResult result = again.train();
  CHECK(result.steps == 10);
  CHECK(result.last_eval);
}

TEST_CASE("an engine takes over the arrays and counts of another bit for bit") {
  const TempFolder place;
  for (const RunSpec& spec : specs()) {
    INFO(spec.name);
    ResumableRun source(place.path() / "source", spec);
    source.train(7);
    const auto checkpoint = newest_whole_checkpoint(ResumableRun::checkpoints(place.path() / "source"));
    REQUIRE(checkpoint);
    ResumableRun target(place.path() / "target", spec);
    CHECK(target.trace().arrays != source.trace().arrays);
    checkpoint->restore(target.engine());
    CHECK(target.trace().arrays == source.trace().arrays);
    CHECK(target.engine().step_counts() == source.engine().step_counts());
    std::filesystem::remove_all(place.path() / "source");
  }
}

TEST_CASE("a run cannot go on behind its end") {
  const TempFolder place;
  RunSpec spec = run_spec("short", DType::kF32);
  ResumableRun(place.path() / "run", spec).train(7);
  const Checkpoint checkpoint(ResumableRun::checkpoints(place.path() / "run") / checkpoint_name(7));
  spec.steps = 6;
  CHECK(thrown([&] { ResumableRun(place.path() / "more", spec, &checkpoint); }) ==
        "config: the checkpoint has 7 steps, the run is to have 6: raise steps");
}
