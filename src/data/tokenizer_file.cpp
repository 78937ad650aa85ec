// SPDX-License-Identifier: Apache-2.0
// Events of tokenizer.json sorted into fields. The file is untrusted: what is kept is never larger than the file.
#include "data/tokenizer_file.h"

#include <fmt/ranges.h>

#include <limits>
#include <optional>

#include "core/error.h"
#include "io/json_events.h"
#include "io/printable.h"

namespace ferry {
namespace {

using Kind = JsonEvent::Kind;
using Path = std::span<const std::string>;

constexpr std::size_t kLargestBytes = std::size_t{256} << 20;
constexpr int kDepth = 16;

class Reader {
 public:
  explicit Reader(std::string origin) : origin_(std::move(origin)) {}

  void on_event(const JsonEvent& event) {
    if (event.path.empty()) return check(event, event.kind == Kind::kObject, "an object");
    const std::string& section = event.path[0];
    if (section == "model") return read_model(event);
    if (section == "added_tokens") return read_added(event);
    if (section == "post_processor") return read_template(event);
    if (section == "normalizer" || section == "pre_tokenizer" || section == "decoder") read_step(event);
  }

  TokenizerFile finish() && {
    FERRY_CHECK(has_model_, kIo, "{}: no model of type BPE", origin_);
    finish_added();
    if (!pair_.empty()) finish_pair();
    return std::move(file_);
  }

 private:
  void check(const JsonEvent& event, bool ok, const char* expected) const {
    FERRY_CHECK(ok, kIo, "{}: {} is {}, expected {}", origin_,
                printable_name(fmt::format("{}", fmt::join(event.path, "."))), describe(event), expected);
  }

  std::int32_t id_of(const JsonEvent& event) const {
    const bool fits =
        event.kind == Kind::kInteger && event.integer >= 0 && event.integer <= std::numeric_limits<std::int32_t>::max();
    check(event, fits, "an id of 0 to 2147483647");
    return static_cast<std::int32_t>(event.integer);
  }

  bool bool_of(const JsonEvent& event) const {
    check(event, event.kind == Kind::kOther && (event.text == "true" || event.text == "false"), "true or false");
    return event.text == "true";
  }

  void read_model(const JsonEvent& event) {
    const Path path = event.path;
    if (path.size() == 1) return check(event, event.kind == Kind::kObject, "an object");
    const std::string& key = path[1];
    if (key == "vocab") {
      path.size() == 2 ? check(event, event.kind == Kind::kObject, "an object") : add_vocabulary(path[2], id_of(event));
    } else if (key == "merges") {
      path.size() == 2 ? check(event, event.kind == Kind::kArray, "an array") : read_merge(event);
    } else if (key == "type") {
      check(event, event.kind == Kind::kString && event.text == "BPE", "\"BPE\"");
      has_model_ = true;
    } else if (key == "byte_fallback") {
      file_.byte_fallback = bool_of(event);
    } else if (key == "ignore_merges") {
      file_.ignore_merges = bool_of(event);
    }
  }

  void add_vocabulary(const std::string& content, std::int32_t id) {
    const auto [place, is_new] = file_.tokens.try_emplace(id, TokenizerFile::Token{.content = content});
    FERRY_CHECK(is_new, kIo, "{}: id {} is that of '{}' and of '{}'", origin_, id,
                printable_name(place->second.content), printable_name(content));
  }

  // "left right", or ["left", "right"].
  void read_merge(const JsonEvent& event) {
    if (event.path.size() == 3) finish_pair();
    if (event.kind == Kind::kArray && event.path.size() == 3) return;
    check(event, event.kind == Kind::kString, "a text");
    if (event.path.size() == 4) {
      pair_.emplace_back(event.text);
      return;
    }
    const std::size_t gap = event.text.find(' ');
    check(event, gap != std::string_view::npos && event.text.find(' ', gap + 1) == std::string_view::npos,
          "two tokens with a space between them");
    file_.merges.emplace_back(event.text.substr(0, gap), event.text.substr(gap + 1));
  }

  void finish_pair() {
    if (pair_.empty()) return;
    FERRY_CHECK(pair_.size() == 2, kIo, "{}: merge {} has {} tokens, expected 2", origin_, file_.merges.size(),
                pair_.size());
    file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    pair_.clear();
  }

  void read_added(const JsonEvent& event) {
    if (event.path.size() == 1) return check(event, event.kind == Kind::kArray, "an array");
    if (event.path.size() == 2) {
      check(event, event.kind == Kind::kObject, "an object");
      added_.emplace_back();
      return;
    }
    Added& added = added_.back();
    const std::string& key = event.path[2];
    if (key == "id") added.id = id_of(event);
    if (key == "special") added.is_special = bool_of(event);
    if (key != "content") return;
    check(event, event.kind == Kind::kString, "a text");
    added.content = event.text;
  }

  // Added tokens may stand in the vocabulary too, with the same content.
  void finish_added() {
    for (std::size_t i = 0; i < added_.size(); ++i) {
      const Added& added = added_[i];
      FERRY_CHECK(added.id.has_value() && added.content.has_value(), kIo, "{}: added_tokens.{} lacks its {}", origin_,
                  i, added.id ? "content" : "id");
      auto& token = file_.tokens.try_emplace(*added.id, TokenizerFile::Token{.content = *added.content}).first->second;
      FERRY_CHECK(token.content == *added.content, kIo, "{}: id {} is that of '{}' and of the added token '{}'",
                  origin_, *added.id, printable_name(token.content), printable_name(*added.content));
      FERRY_CHECK(!token.is_added, kIo, "{}: the added token '{}' is given twice", origin_,
                  printable_name(*added.content));
      token.is_added = true;
      token.is_special = added.is_special;
    }
  }

  void read_step(const JsonEvent& event) {
    if (event.kind == Kind::kObject || event.kind == Kind::kArray) return;
    file_.steps.emplace(fmt::format("{}", fmt::join(event.path, "/")), event.text);
  }

  // TemplateProcessing: "single" lists special tokens and, once, the text.
  void read_template(const JsonEvent& event) {
    const Path path = event.path;
    std::size_t single = 1;
    while (single < path.size() && path[single] != "single") ++single;
    if (path.size() <= single + 2) return;
    const std::string& item = path[single + 2];
    text_begun_ = text_begun_ || item == "Sequence";
    const bool is_name = item == "SpecialToken" && path.size() == single + 4 && path[single + 3] == "id";
    if (!is_name || text_begun_) return;
    check(event, event.kind == Kind::kString, "a token");
    file_.first_tokens.emplace_back(event.text);
  }

  struct Added {
    std::optional<std::int32_t> id;
    std::optional<std::string> content;
    bool is_special = false;
  };

  std::string origin_;
  TokenizerFile file_;
  bool has_model_ = false;
  bool text_begun_ = false;
  std::vector<Added> added_;
  std::vector<std::string> pair_;  // of the merge that is being read
};

}  // namespace

TokenizerFile read_tokenizer_file(const std::filesystem::path& path) {
  Reader reader(path.string());
  read_json_file(path, kLargestBytes, kDepth, [&reader](const JsonEvent& event) { reader.on_event(event); });
  return std::move(reader).finish();
}

}  // namespace ferry
