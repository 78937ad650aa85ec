// SPDX-License-Identifier: Apache-2.0
#include "io/json_events.h"

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

std::vector<std::string> events_of(std::string_view text, int max_depth = 8) {
  std::vector<std::string> events;
  read_json(text, "file", max_depth, [&events](const JsonEvent& event) {
    std::string path;
    for (const std::string& key : event.path) path += "/" + key;
    events.push_back(path + " is " + describe(event));
  });
  return events;
}

TEST_CASE("events come in order, with their paths") {
  const std::vector<std::string> expected{" is an object",     "/a is an array",       "/a/0 is 1", "/a/1 is -2",
                                          "/a/2 is an object", "/b is the string 'x'", "/c is 1.5", "/d is null"};
  CHECK(events_of(R"({"a": [1, -2, {}], "b": "x", "c": 1.5, "d": null})") == expected);
}

TEST_CASE("an integer beyond int64 is no integer") {
  read_json("9223372036854775807", "file", 1, [](const JsonEvent& event) {
    CHECK(event.kind == JsonEvent::Kind::kInteger);
    CHECK(event.integer == INT64_MAX);
  });
  for (const char* text : {"9223372036854775808", "18446744073709551616", "1e3"}) {
    read_json(text, "file", 1, [](const JsonEvent& event) { CHECK(event.kind == JsonEvent::Kind::kOther); });
  }
}

TEST_CASE("malformed JSON is an error with its position") {
  check_error(ErrorKind::kIo, {"file: malformed JSON at byte 6"}, [] { events_of(R"({"a":})"); });
  check_error(ErrorKind::kIo, {"file: malformed JSON at byte 4"}, [] { events_of("{} x"); });
  check_error(ErrorKind::kIo, {"file: malformed JSON"}, [] { events_of(""); });
  check_error(ErrorKind::kIo, {"file: malformed JSON"}, [] { events_of("\"\xff\""); });
}

TEST_CASE("bytes after a zero byte do not go unseen") {
  check_error(ErrorKind::kIo, {"file: malformed JSON at byte 2: a zero byte"},
              [] { events_of(std::string_view("{}\0x", 4)); });
}

TEST_CASE("a key that occurs twice is an error") {
  check_error(ErrorKind::kIo, {"file: the key 'a' occurs twice"}, [] { events_of(R"({"a":1,"b":2,"a":3})"); });
  CHECK(events_of(R"({"a":{"a":1},"b":{"a":1}})").size() == 5);
}

TEST_CASE("depth is bounded") {
  CHECK(events_of("[[1]]", 2).size() == 3);
  check_error(ErrorKind::kIo, {"file: nested deeper than 2 levels"}, [] { events_of("[[[1]]]", 2); });
  check_error(ErrorKind::kIo, {"file: nested deeper than 8 levels"}, [] { events_of(std::string(1'000'000, '[')); });
}

TEST_CASE("a file is read whole, and named in its errors") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.json", R"({"a":1})");
  int n_events = 0;
  read_json_file(path, 7, 8, [&n_events](const JsonEvent&) { ++n_events; });
  CHECK(n_events == 2);
  const auto ignore = [](const JsonEvent&) {};
  check_error(ErrorKind::kIo, {"a.json: 7 bytes, the limit is 6"}, [&] { read_json_file(path, 6, 8, ignore); });
  check_error(ErrorKind::kIo, {"a.json: nested deeper than 0 levels"}, [&] { read_json_file(path, 7, 0, ignore); });
}

}  // namespace
}  // namespace ferry
