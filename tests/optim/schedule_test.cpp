// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: end points, shapes, errors.
#include "optim/schedule.h"

#include <cmath>

#include "catch.h"
#include "test_util.h"

namespace ferry {
namespace {

using test::contains;
using test::error_of;

ScheduleOptions options(Schedule schedule) {
  ScheduleOptions o;
  o.schedule = schedule;
  o.lr = 0.5;
  o.steps = 100;
  o.warmup_steps = 9;
  o.decay_steps = schedule == Schedule::kWsd ? 20 : 0;
  o.min_lr_ratio = 0.125;
  return o;
}

bool near(double got, double want) { return std::abs(got - want) < 1e-15; }

TEST_CASE("the warmup rises from above 0 to the learning rate") {
  for (const Schedule schedule : {Schedule::kConstant, Schedule::kLinear, Schedule::kCosine, Schedule::kWsd}) {
    INFO(to_string(schedule));
    CHECK(near(learning_rate(options(schedule), 0), 0.05));
    CHECK(near(learning_rate(options(schedule), 8), 0.45));
    CHECK(learning_rate(options(schedule), 9) == 0.5);
  }
}

TEST_CASE("without a warmup the first step runs at the learning rate") {
  for (const Schedule schedule : {Schedule::kConstant, Schedule::kLinear, Schedule::kCosine, Schedule::kWsd}) {
    ScheduleOptions o = options(schedule);
    o.warmup_steps = 0;
    INFO(to_string(schedule));
    CHECK(learning_rate(o, 0) == 0.5);
  }
}

TEST_CASE("a decay reaches its floor at the last step, not before, and stays there") {
  for (const Schedule schedule : {Schedule::kLinear, Schedule::kCosine, Schedule::kWsd}) {
    INFO(to_string(schedule));
    CHECK(learning_rate(options(schedule), 98) > 0.0625);
    CHECK(learning_rate(options(schedule), 99) == 0.0625);
    CHECK(learning_rate(options(schedule), 100) == 0.0625);
    CHECK(learning_rate(options(schedule), 1'000'000) == 0.0625);
  }
}

TEST_CASE("a decay never rises") {
  for (const Schedule schedule : {Schedule::kLinear, Schedule::kCosine, Schedule::kWsd}) {
    INFO(to_string(schedule));
    for (std::int64_t i = 9; i < 110; ++i) {
      CHECK(learning_rate(options(schedule), i + 1) <= learning_rate(options(schedule), i));
    }
  }
}

TEST_CASE("constant keeps the learning rate") {
  CHECK(learning_rate(options(Schedule::kConstant), 50) == 0.5);
  CHECK(learning_rate(options(Schedule::kConstant), 99) == 0.5);
}

TEST_CASE("linear falls by equal amounts") {
  CHECK(near(learning_rate(options(Schedule::kLinear), 54), 0.5 * (0.125 + 0.875 * 0.5)));
  CHECK(near(learning_rate(options(Schedule::kLinear), 36), 0.5 * (0.125 + 0.875 * 0.7)));
}

TEST_CASE("cosine is half a period") {
  CHECK(near(learning_rate(options(Schedule::kCosine), 54), 0.5 * (0.125 + 0.875 * 0.5)));
  CHECK(near(learning_rate(options(Schedule::kCosine), 39), 0.5 * (0.125 + 0.875 * 0.75)));
}

TEST_CASE("wsd keeps the learning rate until its decay_steps last steps") {
  CHECK(learning_rate(options(Schedule::kWsd), 79) == 0.5);
  CHECK(near(learning_rate(options(Schedule::kWsd), 80), 0.5 * (0.125 + 0.875 * 0.95)));
  CHECK(near(learning_rate(options(Schedule::kWsd), 89), 0.5 * (0.125 + 0.875 * 0.5)));
}

TEST_CASE("a shorter decay ends early and holds the floor") {
  for (const Schedule schedule : {Schedule::kLinear, Schedule::kCosine}) {
    ScheduleOptions o = options(schedule);
    o.decay_steps = 51;
    INFO(to_string(schedule));
    CHECK(near(learning_rate(o, 34), 0.5 * (0.125 + 0.875 * 0.5)));
    CHECK(learning_rate(o, 58) > 0.0625);
    CHECK(learning_rate(o, 59) == 0.0625);
    CHECK(learning_rate(o, 60) == 0.0625);
  }
}

TEST_CASE("a warmup over the whole run ends below the learning rate") {
  ScheduleOptions o = options(Schedule::kCosine);
  o.warmup_steps = 100;
  CHECK(near(learning_rate(o, 99), 0.5 * 100 / 101));
}

std::string message(const ScheduleOptions& o) {
  return error_of([&] { learning_rate(o, 0); });
}

TEST_CASE("a learning rate that is negative or not a number is refused") {
  ScheduleOptions o = options(Schedule::kCosine);
  o.lr = -1;
  CHECK(contains(message(o), "lr is -1: expected a finite number of 0 or more"));
  o.lr = std::nan("");
  CHECK(contains(message(o), "lr is nan"));
}

TEST_CASE("a floor above the learning rate is refused") {
  ScheduleOptions o = options(Schedule::kCosine);
  o.min_lr_ratio = 1.5;
  CHECK(contains(message(o), "min_lr_ratio is 1.5: expected 0 to 1"));
}

TEST_CASE("negative steps are refused") {
  ScheduleOptions o = options(Schedule::kCosine);
  o.steps = -1;
  CHECK(contains(message(o), "steps is -1: expected 0 or more"));
}

TEST_CASE("a negative warmup is refused") {
  ScheduleOptions o = options(Schedule::kCosine);
  o.warmup_steps = -2;
  CHECK(contains(message(o), "warmup_steps is -2: expected 0 or more"));
}

TEST_CASE("a negative decay is refused") {
  ScheduleOptions o = options(Schedule::kCosine);
  o.decay_steps = -3;
  CHECK(contains(message(o), "decay_steps is -3: expected 0 or more"));
}

TEST_CASE("a warmup longer than the run is refused") {
  ScheduleOptions o = options(Schedule::kConstant);
  o.warmup_steps = 101;
  CHECK(contains(message(o), "warmup_steps is 101, steps 100: lower warmup_steps"));
}

TEST_CASE("wsd without a decay is refused") {
  ScheduleOptions o = options(Schedule::kWsd);
  o.decay_steps = 0;
  CHECK(contains(message(o), "schedule wsd has decay_steps 0"));
}

TEST_CASE("a warmup and a decay that do not fit the run are refused") {
  ScheduleOptions o = options(Schedule::kWsd);
  o.decay_steps = 92;
  CHECK(contains(message(o), "warmup_steps 9 and decay_steps 92 exceed steps 100"));
  o.decay_steps = 91;
  CHECK(message(o).empty());
}

}  // namespace
}  // namespace ferry
