// SPDX-License-Identifier: Apache-2.0
// A short queue of copies, so that the stream never runs dry and a stop is soon.
#include "train/copy_load.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "core/error.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

/// Copies in the queue. The smallest that are measured, of 1 MiB, take 20 us on PCIe Gen5: four of them are far more
/// than the thread needs for one.
constexpr std::size_t kQueued = 4;
/// That a rate is taken of at least.
constexpr double kFewestPieces = 4;
constexpr auto kLook = std::chrono::milliseconds(1);

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

}  // namespace

CopyLoad::CopyLoad(Backend& backend, CopyDirection direction, const Places& places, std::size_t piece_bytes)
    : backend_(backend),
      direction_(direction),
      places_(places),
      piece_bytes_(piece_bytes),
      stream_(backend.create_stream("copies")) {
  FERRY_ASSERT(direction != CopyDirection::kDeviceToDevice && piece_bytes > 0);
  FERRY_ASSERT(std::min(places.host.size(), places.device.size()) >= piece_bytes);
  backend.publish(this);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

CopyLoad::~CopyLoad() {
  thread_.request_stop();
  thread_.join();
  backend_.observe(this);
}

CopyLoad::Progress CopyLoad::progress() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  return progress_;
}

void CopyLoad::enqueue(std::size_t piece) {
  const auto at = [&](std::span<std::byte> place) {
    return place.data() + piece % (place.size() / piece_bytes_) * piece_bytes_;
  };
  const bool up = direction_ == CopyDirection::kHostToDevice;
  backend_.copy(stream_.get(), at(up ? places_.device : places_.host), at(up ? places_.host : places_.device),
                piece_bytes_, direction_);
}

void CopyLoad::run(const std::stop_token& stop) {
  try {
    backend_.observe(this);
    std::array<std::unique_ptr<Event>, kQueued> ends;
    for (auto& end : ends) end = backend_.create_event();
    for (std::size_t piece = 0; !stop.stop_requested(); ++piece) {
      Event* const end = ends.at(piece % kQueued).get();
      if (piece >= kQueued) {
        backend_.sync(end);
        const std::lock_guard lock(mutex_);
        progress_ = {progress_.bytes + static_cast<double>(piece_bytes_), now()};
      }
      enqueue(piece);
      backend_.record(end, stream_.get());
    }
    backend_.sync(stream_.get());
    backend_.publish(this);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

std::vector<double> copy_rates(std::span<const std::unique_ptr<CopyLoad>> loads, double seconds) {
  std::vector<CopyLoad::Progress> begins(loads.size());
  const auto wait = [&](double at_least_s, double pieces) {
    const double end = now() + at_least_s;
    for (bool done = false; !done;) {
      std::this_thread::sleep_for(kLook);
      done = now() >= end;
      for (std::size_t i = 0; i < loads.size(); ++i) {
        const double bytes = loads[i]->progress().bytes - begins[i].bytes;  // throws when a copy has failed
        done = done && bytes >= pieces * static_cast<double>(loads[i]->piece_bytes());
      }
    }
  };
  wait(0, 1);  // until all are under way
  for (std::size_t i = 0; i < loads.size(); ++i) begins[i] = loads[i]->progress();
  wait(seconds, kFewestPieces);
  std::vector<double> rates;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const CopyLoad::Progress end = loads[i]->progress();
    rates.push_back((end.bytes - begins[i].bytes) / (end.seconds - begins[i].seconds));
  }
  return rates;
}

}  // namespace ferry
