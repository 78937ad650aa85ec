// SPDX-License-Identifier: Apache-2.0
// Turns of one call on the host, of several milliseconds on a device.
#include "backend/bench_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

/// Long beside the resolution of events (half a microsecond), short enough for many turns.
constexpr double kTurnSeconds = 5e-3;
constexpr int kFewestCalls = 3;
constexpr int kMostCalls = 200;
/// Calls before the first event: while they run, the timed ones are enqueued.
constexpr int kLeadCalls = 2;
/// A single call's time may be this far off, with the launch in it.
constexpr double kFarLonger = 1.25;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

BenchTimer::BenchTimer(Backend& backend, bool back_to_back)
    : backend_(backend),
      back_to_back_(back_to_back),
      begin_(backend.create_event()),
      end_(backend.create_event()),
      stream_(backend.create_stream("bench")) {}

double BenchTimer::seconds(const Work& work, int lead_calls, int calls) {
  if (!back_to_back_) {
    const auto begin = Clock::now();
    work(stream());
    backend_.sync(stream());
    return seconds_since(begin);
  }
  for (int i = 0; i < lead_calls; ++i) work(stream());
  backend_.record(begin_.get(), stream());
  for (int i = 0; i < calls; ++i) work(stream());
  backend_.record(end_.get(), stream());
  backend_.sync(end_.get());
  return backend_.elapsed_ms(begin_.get(), end_.get()) / 1e3 / calls;
}

int BenchTimer::calls_per_turn(const Work& work) {
  work(stream());  // loads code, and lets the backend choose how to run it
  backend_.sync(stream());
  if (!back_to_back_) return 1;
  const double once = std::max(seconds(work, kLeadCalls, kFewestCalls), 1e-9);
  return static_cast<int>(std::clamp<double>(std::ceil(kTurnSeconds / once), kFewestCalls, kMostCalls));
}

BenchTimer::Fastest BenchTimer::take_turns(const Work& ours, const Work& yardstick, double limit_s) {
  const int our_calls = calls_per_turn(ours);
  const int yardstick_calls = yardstick ? calls_per_turn(yardstick) : 0;
  constexpr double kNone = std::numeric_limits<double>::infinity();
  Fastest fastest{kNone, yardstick ? kNone : 0};
  const auto begin = Clock::now();
  do {
    fastest.ours = std::min(fastest.ours, seconds(ours, kLeadCalls, our_calls));
    if (yardstick) fastest.yardstick = std::min(fastest.yardstick, seconds(yardstick, kLeadCalls, yardstick_calls));
  } while (seconds_since(begin) < limit_s);
  return fastest;
}

double BenchTimer::brief(const Work& work, double best_s) {
  const double once = seconds(work, 0, 1);
  const bool is_enough = once > kFarLonger * best_s || once > kTurnSeconds;
  return is_enough ? once : seconds(work, kLeadCalls, kFewestCalls);
}

}  // namespace ferry
