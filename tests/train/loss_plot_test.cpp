// SPDX-License-Identifier: Apache-2.0
// Tests of train/loss_plot.h.
#include "train/loss_plot.h"

#include <cmath>
#include <string>

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

using namespace ferry;

namespace {

/// Every element is closed, in order, and no bare & or < is left: enough of XML for what the plot writes.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t i = 0; i < xml.size(); ++i) {
    if (xml[i] == '&' && xml.find(';', i) > i + 5) return false;
    if (xml[i] != '<') continue;
    const std::size_t end = xml.find('>', i);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(i + 1, end - i - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return false;
    i = end;
    if (tag.back() == '/') continue;
    if (tag.front() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
      continue;
    }
    if (open.empty() || open.back() != tag.substr(1)) return false;
    open.pop_back();
  }
  return open.empty();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::vector<LossPoint> falling(std::int64_t n) {
  std::vector<LossPoint> points;
  for (std::int64_t i = 1; i <= n; ++i) points.push_back({i, 2 + 3 * std::exp(-static_cast<double>(i) / 50)});
  return points;
}

}  // namespace

TEST_CASE("the picture is well-formed XML with a line, a smoothed line and the validation points") {
  const std::string svg =
      loss_svg({.title = "a < b & \"c\"\x01", .train = falling(300), .val = {{100, 3}, {300, 2.5}}});
  CHECK(well_formed(svg));
  CHECK(count(svg, "<polyline") == 3);
  CHECK(count(svg, "<circle") == 3);  // one in the legend
  CHECK(svg.find("a &lt; b &amp; &quot;c&quot; <") != std::string::npos);
  CHECK(svg.find("validation, last 2.500") != std::string::npos);
}

TEST_CASE("curves that are empty, flat or not finite give a picture too") {
  const std::vector<std::vector<LossPoint>> curves = {
      {}, {{1, 2}}, {{1, 2}, {2, 2}}, {{1, NAN}, {2, INFINITY}, {3, 2}}};
  for (const auto& train : curves) {
    const std::string svg = loss_svg({.title = "", .train = train, .val = {}});
    CHECK(well_formed(svg));
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg.find("inf") == std::string::npos);
  }
}

TEST_CASE("a long run gives a small picture") { CHECK(loss_svg({"", falling(100'000), {}}).size() < 100'000); }

TEST_CASE("ticks are round numbers inside the range") {
  CHECK(axis_ticks(0, 8) == std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(axis_ticks(0, 500).size() == 6);
  CHECK(axis_ticks(1, 1).empty());
  for (const double high : {0.003, 0.7, 1.0, 17.0, 999.0, 123456.0}) {
    const std::vector<double> ticks = axis_ticks(0, high);
    CHECK(ticks.size() >= 4);
    CHECK(ticks.size() <= 10);
    CHECK(ticks.back() <= high * (1 + 1e-9));
  }
}

TEST_CASE("smoothing averages a centred window, narrow at the start and cut off at the end") {
  const std::vector<LossPoint> points = {{1, 1}, {2, 5}, {3, 3}, {4, 7}, {5, 2}};
  const std::vector<LossPoint> smoothed = smooth(points, 3);
  CHECK(smoothed[0].loss == 1);
  CHECK(smoothed[1].loss == 3);
  CHECK(smoothed[2].loss == 5);
  CHECK(smoothed[4].loss == 4.5);
  CHECK(smooth({}, 3).empty());
}

TEST_CASE("the history keeps bounded memory and the mean of the last steps") {
  LossHistory history;
  CHECK(std::isnan(history.mean_of_last(5)));
  const std::int64_t n = 5 * static_cast<std::int64_t>(LossHistory::kMaxKept) + 3;
  for (std::int64_t i = 1; i <= n; ++i) history.add(i, static_cast<double>(i));
  CHECK(history.points().size() <= LossHistory::kMaxKept);
  CHECK(history.points().size() >= LossHistory::kMaxKept / 2);
  CHECK(history.points().back().step == n);
  CHECK(history.points().front().loss == Approx(4.5));  // steps 1 to 8
  CHECK(history.mean_of_last(3) == Approx(static_cast<double>(n - 1)));
}

TEST_CASE("a plot that cannot be written is an io error") {
  const TempFolder folder;
  CHECK(thrown([&] { write_loss_svg(folder.path() / "absent" / "loss.svg", {}); }).starts_with("io: "));
}
