// SPDX-License-Identifier: Apache-2.0
// The events of nlohmann-json's parser, checked and given a path.
#include "io/json_events.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "core/error.h"
#include "io/mapped_file.h"
#include "io/printable.h"

namespace ferry {
namespace {

class EventReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  EventReader(const std::string& origin, int max_depth, const std::function<void(const JsonEvent&)>& on_event)
      : origin_(origin), max_depth_(max_depth), on_event_(on_event) {}

  bool null() override { return emit(JsonEvent::Kind::kOther, "null"); }
  bool boolean(bool value) override { return emit(JsonEvent::Kind::kOther, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return emit(JsonEvent::Kind::kInteger, std::to_string(value), value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    const bool fits = value <= static_cast<std::uint64_t>(INT64_MAX);
    return emit(fits ? JsonEvent::Kind::kInteger : JsonEvent::Kind::kOther, std::to_string(value),
                static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t, const string_t& text) override { return emit(JsonEvent::Kind::kOther, text); }
  bool string(string_t& value) override { return emit(JsonEvent::Kind::kString, value); }
  bool binary(binary_t&) override { return emit(JsonEvent::Kind::kOther, "binary"); }

  bool start_object(std::size_t) override { return open(JsonEvent::Kind::kObject); }
  bool start_array(std::size_t) override { return open(JsonEvent::Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    FERRY_CHECK(open_.back().keys.insert(name).second, kIo, "{}: the key '{}' occurs twice", origin_,
                printable_name(name));
    path_.back() = name;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& last_token, const nlohmann::json::exception&) override {
    FERRY_CHECK(false, kIo, "{}: malformed JSON at byte {}, near '{}'", origin_, position, printable_name(last_token));
    return false;
  }

 private:
  struct Container {
    bool is_array = false;
    std::int64_t n_values = 0;
    std::unordered_set<std::string> keys;
  };

  bool emit(JsonEvent::Kind kind, std::string_view text, std::int64_t integer = 0) {
    if (!open_.empty() && open_.back().is_array) path_.back() = std::to_string(open_.back().n_values++);
    on_event_({kind, path_, text, integer});
    return true;
  }

  bool open(JsonEvent::Kind kind) {
    FERRY_CHECK(static_cast<int>(open_.size()) < max_depth_, kIo, "{}: nested deeper than {} levels", origin_,
                max_depth_);
    emit(kind, {});
    open_.push_back({kind == JsonEvent::Kind::kArray, 0, {}});
    path_.emplace_back();
    return true;
  }

  bool close() {
    open_.pop_back();
    path_.pop_back();
    return true;
  }

  const std::string& origin_;
  int max_depth_;
  const std::function<void(const JsonEvent&)>& on_event_;
  std::vector<Container> open_;
  std::vector<std::string> path_;  // one key per open container
};

}  // namespace

void read_json(std::string_view text, const std::string& origin, int max_depth,
               const std::function<void(const JsonEvent&)>& on_event) {
  // The parser takes a zero byte for the end of its input and would not look at what follows.
  const std::size_t zero = text.find('\0');
  FERRY_CHECK(zero == std::string_view::npos, kIo, "{}: malformed JSON at byte {}: a zero byte", origin, zero);
  EventReader reader(origin, max_depth, on_event);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
}

void read_json_file(const std::filesystem::path& path, std::size_t largest_bytes, int max_depth,
                    const std::function<void(const JsonEvent&)>& on_event) {
  const MappedFile file(path);
  FERRY_CHECK(file.bytes().size() <= largest_bytes, kIo, "{}: {} bytes, the limit is {}", path.string(),
              file.bytes().size(), largest_bytes);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  read_json(text, path.string(), max_depth, on_event);
}

std::string describe(const JsonEvent& event) {
  switch (event.kind) {
    case JsonEvent::Kind::kObject: return "an object";
    case JsonEvent::Kind::kArray: return "an array";
    case JsonEvent::Kind::kString: return fmt::format("the string '{}'", printable_name(event.text));
    case JsonEvent::Kind::kInteger:
    case JsonEvent::Kind::kOther: break;
  }
  return printable_name(event.text);
}

}  // namespace ferry
