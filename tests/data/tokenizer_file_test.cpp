// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_file.h"

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

TokenizerFile read(const std::string& json) {
  const TemporaryFolder folder;
  return read_tokenizer_file(folder.write("tokenizer.json", json));
}

void check_refused(const std::string& json, const std::string& part) {
  check_error(ErrorKind::kIo, {"tokenizer.json: ", part}, [&] { read(json); });
}

/// A file with these members of "model" beside its type, and these members of the root.
std::string file_with(const std::string& model, const std::string& root = "") {
  return R"({"model":{"type":"BPE")" + (model.empty() ? "" : "," + model) + "}" + (root.empty() ? "" : "," + root) +
         "}";
}

TEST_CASE("tokens, merges and steps are read in any order") {
  const TokenizerFile file = read(
      R"({"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"}]},"version":"1.0",
          "model":{"merges":["a b",["ab","a"]],"vocab":{"a":0,"b":1,"ab":2,"aba":7},"byte_fallback":true,"type":"BPE"},
          "post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",
            "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},
                      {"SpecialToken":{"id":"</s>","type_id":0}}]}]},
          "added_tokens":[{"id":8,"content":"<s>","special":true},{"id":0,"content":"a","special":false}]})");
  CHECK(file.tokens.size() == 5);
  CHECK(file.tokens.at(7).content == "aba");
  CHECK(file.tokens.at(8).is_special);
  CHECK(file.tokens.at(8).is_added);
  CHECK(file.tokens.at(0).is_added);
  CHECK_FALSE(file.tokens.at(0).is_special);
  CHECK_FALSE(file.tokens.at(1).is_added);
  REQUIRE(file.merges.size() == 2);
  CHECK(file.merges[0] == std::pair<std::string, std::string>{"a", "b"});
  CHECK(file.merges[1] == std::pair<std::string, std::string>{"ab", "a"});
  CHECK(file.steps.at("decoder/decoders/0/type") == "ByteFallback");
  CHECK(file.byte_fallback);
  CHECK_FALSE(file.ignore_merges);
  CHECK(file.first_tokens == std::vector<std::string>{"<s>"});
}

TEST_CASE("other models than BPE are refused") {
  check_refused(R"({"model":{"type":"Unigram","vocab":[["a",0.5]]}})",
                "model.type is the string 'Unigram', expected \"BPE\"");
  check_refused(R"({"version":"1.0"})", "no model of type BPE");
  check_refused(R"({"model":{"vocab":{}}})", "no model of type BPE");
  check_refused(R"({"model":[]})", "model is an array, expected an object");
  check_refused("[]", "is an array, expected an object");
}

TEST_CASE("ids are checked") {
  check_refused(file_with(R"("vocab":{"a":-1})"), "model.vocab.a is -1, expected an id of 0 to 2147483647");
  check_refused(file_with(R"("vocab":{"a":2147483648})"), "model.vocab.a is 2147483648");
  check_refused(file_with(R"("vocab":{"a":1.5})"), "model.vocab.a is 1.5");
  check_refused(file_with(R"("vocab":{"a":"1"})"), "model.vocab.a is the string '1'");
  check_refused(file_with(R"("vocab":{"a":{"b":1}})"), "model.vocab.a is an object");
  check_refused(file_with(R"("vocab":["a"])"), "model.vocab is an array, expected an object");
  check_refused(file_with(R"("vocab":{"a":1,"b":1})"), "id 1 is that of 'a' and of 'b'");
  check_refused(file_with(R"("vocab":{"a":1,"a":2})"), "the key 'a' occurs twice");
}

TEST_CASE("added tokens are checked") {
  const auto added = [](const std::string& tokens) {
    return file_with(R"("vocab":{"a":0})", R"("added_tokens":)" + tokens);
  };
  check_refused(added("{}"), "added_tokens is an object, expected an array");
  check_refused(added("[1]"), "added_tokens.0 is 1, expected an object");
  check_refused(added(R"([{"id":1}])"), "added_tokens.0 lacks its content");
  check_refused(added(R"([{"content":"x"}])"), "added_tokens.0 lacks its id");
  check_refused(added(R"([{"id":0,"content":"x"}])"), "id 0 is that of 'a' and of the added token 'x'");
  check_refused(added(R"([{"id":1,"content":"x"},{"id":1,"content":"x"}])"), "the added token 'x' is given twice");
  check_refused(added(R"([{"id":1,"content":"x","special":1}])"),
                "added_tokens.0.special is 1, expected true or false");
  check_refused(added(R"([{"id":1,"content":7}])"), "added_tokens.0.content is 7, expected a text");
}

TEST_CASE("merges are checked") {
  const auto merges = [](const std::string& list) { return file_with(R"("merges":)" + list); };
  check_refused(merges("{}"), "model.merges is an object, expected an array");
  check_refused(merges("[1]"), "model.merges.0 is 1, expected a text");
  check_refused(merges(R"(["ab"])"), "expected two tokens with a space between them");
  check_refused(merges(R"(["a b c"])"), "expected two tokens with a space between them");
  check_refused(merges(R"([["a"]])"), "merge 0 has 1 tokens, expected 2");
  check_refused(merges(R"([["a","b","c"],"a b"])"), "merge 0 has 3 tokens, expected 2");
  check_refused(merges(R"([["a",["b"]]])"), "model.merges.0.1 is an array, expected a text");
}

TEST_CASE("a damaged or absent file is an error") {
  check_refused("", "malformed JSON");
  check_refused(R"({"model":)", "malformed JSON");
  check_refused(R"({"x":)" + std::string(100, '['), "nested deeper than 16 levels");
  check_error(ErrorKind::kIo, {"/absent"}, [] { read_tokenizer_file("/absent"); });
  const TemporaryFolder folder;
  const auto path = folder.write("tokenizer.json", "{}");
  std::filesystem::resize_file(path, 1ULL << 33);  // sparse
  check_error(ErrorKind::kIo, {"the limit is 268435456"}, [&] { read_tokenizer_file(path); });
}

}  // namespace
}  // namespace ferry
