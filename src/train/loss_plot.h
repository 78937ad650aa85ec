// SPDX-License-Identifier: Apache-2.0
// A picture of the loss curve, as SVG text.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace ferry {

struct LossPoint {
  std::int64_t step = 0;
  double loss = 0;  // nats per token

  bool operator==(const LossPoint&) const = default;
};

/// The loss of every step in bounded memory: once kMaxKept points are there, neighbours are averaged in pairs.
class LossHistory {
 public:
  static constexpr std::size_t kMaxKept = std::size_t{1} << 14;

  static constexpr std::size_t kTail = 50;
  /// All that is kept, for checkpoints.
  struct State {
    std::vector<LossPoint> points;
    std::size_t group = 1;     // losses averaged in one point
    std::size_t in_group = 0;  // losses in the last point
    std::deque<double> tail;   // the last kTail losses

    bool operator==(const State&) const = default;
  };

  LossHistory() = default;
  explicit LossHistory(State state) : state_(std::move(state)) {}
  const State& state() const { return state_; }

  /// Steps in ascending order.
  void add(std::int64_t step, double loss);
  const std::vector<LossPoint>& points() const { return state_.points; }
  /// Mean of the last `n_steps` losses added, n_steps <= kTail; fewer when there are fewer. NaN when there are none.
  double mean_of_last(std::size_t n_steps) const;

 private:
  void halve();

  State state_;
};

struct LossCurve {
  std::string title;
  std::vector<LossPoint> train;  // by step
  std::vector<LossPoint> val;    // by step
};

/// Distances between axis ticks are 1, 2 or 5 times a power of ten; between 4 and 10 ticks lie in [low, high].
std::vector<double> axis_ticks(double low, double high);

/// Centred moving average over `window` points; at the start, where losses fall fast, over as many as lie before.
std::vector<LossPoint> smooth(const std::vector<LossPoint>& points, std::size_t window);

/// Training loss in a light line with a smoothed one above it, validation loss as points; axes, legend, title.
/// Points that are not finite are left out; an empty curve gives axes alone.
std::string loss_svg(const LossCurve& curve);

/// Throws Error{kIo}.
void write_loss_svg(const std::filesystem::path& path, const LossCurve& curve);

}  // namespace ferry
