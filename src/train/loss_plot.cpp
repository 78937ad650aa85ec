// SPDX-License-Identifier: Apache-2.0
// SVG by hand: a frame, two polylines and some circles need no plotting library.
#include "train/loss_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/error.h"
#include "io/atomic_file.h"

namespace ferry {
namespace {

constexpr double kWidth = 800;
constexpr double kHeight = 480;
constexpr double kLeft = 70;
constexpr double kRight = 24;
constexpr double kTop = 48;
constexpr double kBottom = 56;
constexpr std::size_t kMaxPoints = 2000;  // more are averaged in groups: finer than the picture's pixels

constexpr const char* kLight = "#a6c8ea";
constexpr const char* kDark = "#1f5fa8";
constexpr const char* kAccent = "#d9541e";
constexpr const char* kInk = "#333333";
constexpr const char* kGrid = "#e6e6e6";

/// Data coordinates to pixels.
struct Axes {
  double x_low = 0;
  double x_high = 1;
  double y_low = 0;
  double y_high = 1;

  double x(double step) const { return kLeft + (step - x_low) / (x_high - x_low) * (kWidth - kLeft - kRight); }
  double y(double loss) const {
    return kHeight - kBottom - (loss - y_low) / (y_high - y_low) * (kHeight - kTop - kBottom);
  }
};

std::vector<LossPoint> finite(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> kept;
  std::copy_if(points.begin(), points.end(), std::back_inserter(kept),
               [](const LossPoint& p) { return std::isfinite(p.loss); });
  return kept;
}

/// Averages groups of neighbours until at most kMaxPoints are left.
std::vector<LossPoint> thin_out(const std::vector<LossPoint>& points) {
  const std::size_t group = (points.size() + kMaxPoints - 1) / kMaxPoints;
  if (group <= 1) return points;
  std::vector<LossPoint> thinned;
  for (std::size_t begin = 0; begin < points.size(); begin += group) {
    const std::size_t end = std::min(points.size(), begin + group);
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += points[i].loss;
    thinned.push_back({points[(begin + end - 1) / 2].step, sum / static_cast<double>(end - begin)});
  }
  return thinned;
}

double tick_step(double low, double high) {
  const double rough = (high - low) / 8;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power * (1 + 1e-9)) return factor * power;
  }
  return 10 * power;
}

Axes fit_axes(const std::vector<LossPoint>& train, const std::vector<LossPoint>& val) {
  Axes axes;
  double low = INFINITY;
  double high = -INFINITY;
  for (const auto* points : {&train, &val}) {
    for (const LossPoint& p : *points) {
      axes.x_high = std::max(axes.x_high, static_cast<double>(p.step));
      low = std::min(low, p.loss);
      high = std::max(high, p.loss);
    }
  }
  if (!(low <= high)) return axes;
  if (high - low < 1e-6) {
    low -= 0.5;
    high += 0.5;
  }
  const double step = tick_step(low, high);
  axes.y_low = std::floor(low / step) * step;
  axes.y_high = std::ceil(high / step) * step;
  return axes;
}

std::string escape_xml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

std::string tick_label(double value) {
  if (std::abs(value) >= 10000) return fmt::format("{:g}k", value / 1000);
  return fmt::format("{:g}", std::abs(value) < 1e-12 ? 0.0 : value);
}

std::string polyline(const Axes& axes, const std::vector<LossPoint>& points, const char* colour, double width) {
  if (points.empty()) return {};
  std::string coordinates;
  for (const LossPoint& p : points) {
    coordinates += fmt::format("{:.1f},{:.1f} ", axes.x(static_cast<double>(p.step)), axes.y(p.loss));
  }
  coordinates.pop_back();
  return fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"/>\n",
      coordinates, colour, width);
}

std::string text(double x, double y, const char* anchor, int size, const std::string& content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"{}\">{}</text>\n", x,
                     y, anchor, size, kInk, escape_xml(content));
}

std::string line(double x1, double y1, double x2, double y2, const char* colour, double width) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"/>\n", x1, y1, x2,
      y2, colour, width);
}

std::string draw_axes(const Axes& axes) {
  const double bottom = kHeight - kBottom;
  const double right = kWidth - kRight;
  std::string svg;
  for (const double loss : axis_ticks(axes.y_low, axes.y_high)) {
    svg += line(kLeft, axes.y(loss), right, axes.y(loss), kGrid, 1);
    svg += text(kLeft - 8, axes.y(loss) + 4, "end", 12, tick_label(loss));
  }
  for (const double step : axis_ticks(axes.x_low, axes.x_high)) {
    svg += line(axes.x(step), bottom, axes.x(step), bottom + 5, kInk, 1);
    svg += text(axes.x(step), bottom + 19, "middle", 12, tick_label(step));
  }
  svg += line(kLeft, bottom, right, bottom, kInk, 1);
  svg += line(kLeft, kTop, kLeft, bottom, kInk, 1);
  svg += text((kLeft + right) / 2, kHeight - 14, "middle", 13, "step");
  svg += fmt::format("<g transform=\"translate(20 {:.1f}) rotate(-90)\">{}</g>\n", (kTop + bottom) / 2,
                     text(0, 0, "middle", 13, "loss (nats per token)"));
  return svg;
}

std::string draw_points(const Axes& axes, const std::vector<LossPoint>& points) {
  std::string svg = polyline(axes, points, kAccent, 1);
  for (const LossPoint& p : points) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n",
                       axes.x(static_cast<double>(p.step)), axes.y(p.loss), kAccent);
  }
  return svg;
}

std::string draw_legend(const std::vector<LossPoint>& val) {
  const double x = kWidth - kRight - 200;
  double y = kTop + 20;
  std::string svg = line(x, y, x + 26, y, kLight, 2) + text(x + 34, y + 4, "start", 12, "training, each step");
  y += 20;
  svg += line(x, y, x + 26, y, kDark, 2.5) + text(x + 34, y + 4, "start", 12, "training, smoothed");
  if (val.empty()) return svg;
  y += 20;
  svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", x + 13, y, kAccent);
  svg += text(x + 34, y + 4, "start", 12, fmt::format("validation, last {:.3f}", val.back().loss));
  return svg;
}

}  // namespace

void LossHistory::add(std::int64_t step, double loss) {
  state_.tail.push_back(loss);
  if (state_.tail.size() > kTail) state_.tail.pop_front();
  if (state_.points.empty() || state_.in_group == state_.group) {
    if (state_.points.size() == kMaxKept) halve();
    state_.points.push_back({step, loss});
    state_.in_group = 1;
    return;
  }
  LossPoint& last = state_.points.back();
  ++state_.in_group;
  last.loss += (loss - last.loss) / static_cast<double>(state_.in_group);
  last.step = step;
}

void LossHistory::halve() {
  for (std::size_t i = 0; i < state_.points.size() / 2; ++i) {
    state_.points[i] = {state_.points[2 * i + 1].step, (state_.points[2 * i].loss + state_.points[2 * i + 1].loss) / 2};
  }
  state_.points.resize(state_.points.size() / 2);
  state_.group *= 2;
  state_.in_group = state_.group;
}

double LossHistory::mean_of_last(std::size_t n_steps) const {
  const std::size_t n = std::min(n_steps, state_.tail.size());
  return std::accumulate(state_.tail.end() - static_cast<std::ptrdiff_t>(n), state_.tail.end(), 0.0) /
         static_cast<double>(n);
}

std::vector<double> axis_ticks(double low, double high) {
  std::vector<double> ticks;
  if (!(high > low)) return ticks;
  const double step = tick_step(low, high);
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) ticks.push_back(i * step);
  return ticks;
}

std::vector<LossPoint> smooth(const std::vector<LossPoint>& points, std::size_t window) {
  const std::size_t half = window / 2;
  std::vector<double> sums(points.size() + 1, 0.0);
  std::transform_inclusive_scan(points.begin(), points.end(), sums.begin() + 1, std::plus<>(),
                                [](const LossPoint& p) { return p.loss; });
  std::vector<LossPoint> smoothed = points;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t reach = std::min(half, i);
    const std::size_t end = std::min(i + reach + 1, points.size());
    smoothed[i].loss = (sums[end] - sums[i - reach]) / static_cast<double>(end - (i - reach));
  }
  return smoothed;
}

std::string loss_svg(const LossCurve& curve) {
  const std::vector<LossPoint> train = thin_out(finite(curve.train));
  const std::vector<LossPoint> val = finite(curve.val);
  const Axes axes = fit_axes(train, val);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += text(kWidth / 2, 28, "middle", 16, curve.title);
  svg += draw_axes(axes);
  svg += polyline(axes, train, kLight, 1);
  svg += polyline(axes, smooth(train, std::max<std::size_t>(train.size() / 25, 1)), kDark, 2);
  svg += draw_points(axes, val);
  svg += draw_legend(val);
  return svg + "</svg>\n";
}

void write_loss_svg(const std::filesystem::path& path, const LossCurve& curve) {
  write_file_atomically(path, loss_svg(curve));
}

}  // namespace ferry
