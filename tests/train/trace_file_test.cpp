// SPDX-License-Identifier: Apache-2.0
// Tests of train/trace_file.h: what a viewer of traces relies on.
#include "train/trace_file.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

using namespace ferry;

namespace {

std::vector<TimelineSpan> two_spans() {
  return {{.lane = Lane::kH2d, .name = "weights layer 3", .step = 4, .begin_us = 10.5, .duration_us = 2},
          {.lane = Lane::kLauncher, .name = "launch step", .step = 4, .begin_us = 8, .duration_us = 30}};
}

}  // namespace

TEST_CASE("a trace names its lanes in order and has one complete event for each span") {
  const auto json = nlohmann::json::parse(to_trace_json(two_spans()));
  std::map<int, std::string> lanes;
  std::vector<nlohmann::json> spans;
  for (const auto& event : json["traceEvents"]) {
    if (event["name"] == "thread_name") lanes[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "X") spans.push_back(event);
  }
  CHECK(lanes == std::map<int, std::string>{{1, "h2d"}, {2, "compute"}, {3, "d2h"}, {4, "optimizer"}, {5, "launcher"}});
  REQUIRE(spans.size() == 2);
  CHECK(spans[0]["name"] == "weights layer 3");
  CHECK(spans[0]["tid"] == 1);
  CHECK(spans[0]["ts"] == 10.5);
  CHECK(spans[0]["dur"] == 2);
  CHECK(spans[0]["args"]["step"] == 5);
  CHECK(spans[1]["tid"] == 5);
}

TEST_CASE("a trace file appears when it is complete") {
  const TempFolder folder;
  const auto path = folder.path() / "trace.json";
  TraceFile file(path);
  CHECK_FALSE(std::filesystem::exists(path));
  file.write(two_spans());
  std::ifstream stream(path);
  CHECK(nlohmann::json::parse(stream)["traceEvents"].size() == 13);
}

TEST_CASE("a trace that cannot be created is an io error at once") {
  const TempFolder folder;
  const std::string message = thrown([&] { TraceFile(folder.path() / "absent" / "trace.json"); });
  CHECK(message.starts_with("io: "));
  CHECK(message.find("absent") != std::string::npos);
}
