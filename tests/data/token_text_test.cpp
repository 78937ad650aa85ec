// SPDX-License-Identifier: Apache-2.0
#include "data/token_text.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;

using Ids = std::vector<std::int32_t>;

const std::filesystem::path kStories = std::filesystem::path(FERRY_FIXTURES) / "stories260k";

nlohmann::json stories_expected() { return nlohmann::json::parse(read_file(kStories / "expected.json")); }

/// Byte-level, as Llama 3 writes it.
constexpr const char* kByteLevel = R"({
  "added_tokens":[{"id":9,"content":"<|begin|>","special":true},{"id":10,"content":"[é]","special":false}],
  "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+"}},{"type":"ByteLevel"}]},
  "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|begin|>","type_id":0}},
    {"Sequence":{"id":"A","type_id":0}}]},
  "decoder":{"type":"ByteLevel","add_prefix_space":true},
  "model":{"type":"BPE","byte_fallback":false,"ignore_merges":true,"merges":["Ġ h"],
    "vocab":{"h":0,"Ġh":1,"Ċ":2,"Ã":3,"©":4,"ĠĠ":5,"世":6,"ŀ":7,"\u0142":8}}})";

TokenText load(const std::string& tokenizer, const std::string& config = "", const std::string& generation = "") {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", tokenizer);
  if (!config.empty()) folder.write("config.json", config);
  if (!generation.empty()) folder.write("generation_config.json", generation);
  return TokenText::load(folder.path());
}

/// Characters with bytes as a fallback: the model's and root's members.
std::string sentence_piece(const std::string& model, const std::string& root) {
  return R"({"model":{"type":"BPE",)" + model + "}," + root + "}";
}

TEST_CASE("the byte vocabulary reads and writes any bytes") {
  const TokenText text = TokenText::of_bytes();
  CHECK(text.size() == 256);
  CHECK(text.bytes_of(0xe9) == "\xe9");
  CHECK(text.bytes_of(256).empty());
  CHECK_FALSE(text.bos().has_value());
  CHECK(text.eos().empty());
  const std::string bytes(" a\0\xff\n", 5);
  CHECK(text.decode(text.encode(bytes)) == bytes);
  CHECK(text.why_not_encode().empty());
}

TEST_CASE("tokens spelled by bytes give these bytes") {
  const TokenText text = load(kByteLevel);
  CHECK(text.size() == 11);
  CHECK(text.bytes_of(1) == " h");
  CHECK(text.bytes_of(2) == "\n");
  CHECK(text.bytes_of(3) == "\xc3");
  CHECK(text.bytes_of(5) == "  ");
  CHECK(text.bytes_of(6) == "世");    // stands for no bytes
  CHECK(text.bytes_of(7) == "\x9e");  // U+0140
  CHECK(text.bytes_of(8) == "\xa0");  // U+0142
  CHECK(text.bytes_of(10) == "[é]");  // an added token
  CHECK(text.decode(Ids{9, 1, 3, 4, 2, 10}) == " h\xc3\xa9\n[é]");
  CHECK_FALSE(text.drops_first_space());
}

TEST_CASE("a vocabulary that is cut by rules decodes but does not encode") {
  const TokenText text = load(kByteLevel);
  CHECK(text.why_not_encode().find("give token ids") != std::string::npos);
  check_error(ErrorKind::kConfig, {"tokenizer.json' cuts texts by rules that are not built in"},
              [&] { (void)text.encode("h"); });
}

TEST_CASE("special tokens are known and have no text") {
  const TokenText text = load(kByteLevel);
  CHECK(text.is_special(9));
  CHECK(text.bytes_of(9) == "<|begin|>");
  CHECK_FALSE(text.is_special(10));
  CHECK_FALSE(text.is_special(1));
  CHECK_FALSE(text.is_special(-1));
  CHECK_FALSE(text.contains(11));
  CHECK(text.decode(Ids{9, 11, -1, 9}).empty());
}

TEST_CASE("the ids that end a text are one, several or none") {
  const auto eos = [](const std::string& config, const std::string& generation) {
    return load(kByteLevel, config, generation).eos();
  };
  CHECK(eos(R"({"eos_token_id":2})", "") == Ids{2});
  CHECK(eos(R"({"eos_token_id":2})", R"({"eos_token_id":[3,4]})") == Ids{3, 4});
  CHECK(eos(R"({"eos_token_id":2})", R"({"eos_token_id":null})") == Ids{2});
  CHECK(eos(R"({"eos_token_id":2,"x":{"eos_token_id":7}})", R"({})") == Ids{2});
  CHECK(eos("", "").empty());
  const TokenText text = load(kByteLevel, R"({"bos_token_id":9,"eos_token_id":[2,7]})");
  CHECK(text.bos() == 9);
  CHECK(text.is_eos(7));
  CHECK_FALSE(text.is_eos(3));
  for (const char* bad : {"\"2\"", "-1", "2.5", "[2,\"3\"]", "{}", "true", "4294967296"}) {
    INFO(bad);
    check_error(ErrorKind::kIo, {"config.json: eos_token_id is", "expected an id or a list of ids"},
                [&] { eos(fmt::format(R"({{"eos_token_id":{}}})", bad), ""); });
  }
}

TEST_CASE("stories260K's texts encode to its ids and come back") {
  const TokenText text = TokenText::load(kStories);
  CHECK(text.size() == 512);
  CHECK(text.bos() == 1);
  CHECK(text.eos() == Ids{2});
  const auto samples = stories_expected()["tokenizer_samples"];
  REQUIRE(samples.size() == 4);
  for (const auto& sample : samples) {
    const auto expected = sample["text"].get<std::string>();
    const auto ids = sample["ids"].get<Ids>();
    INFO(expected);
    CHECK(text.encode(expected) == ids);
    CHECK(text.decode(ids) == expected);
  }
  CHECK(text.encode("") == Ids{1});
}

TEST_CASE("stories260K's generated ids are its text, first space aside") {
  const TokenText text = TokenText::load(kStories);
  const auto expected = stories_expected();
  const auto ids = expected["greedy_from_bos_ids"].get<Ids>();
  CHECK(" " + text.decode(ids) == expected["greedy_from_bos_text"].get<std::string>());
}

TEST_CASE("a text grows token by token, and only its first space is dropped") {
  const TokenText text = TokenText::load(kStories);
  TextDecoder decoder(text);
  CHECK(decoder.next(1).empty());
  CHECK(decoder.next(403) == "Once");
  CHECK(decoder.next(407) == " upon");
  CHECK(decoder.next(13) == "\n");  // <0x0A>
  TextDecoder continued(text, false);
  CHECK(continued.next(407) == " upon");
  CHECK(text.bytes_of(403) == " Once");
}

TEST_CASE("what no token spells is spelled by bytes, damaged UTF-8 too") {
  const TokenText text = TokenText::load(kStories);
  for (const std::string bytes : {"日本", "\xe9 x", "\xff\xfe", "a\xe2\x96", "\xe2", " ", "   "}) {
    INFO(bytes);
    CHECK(text.decode(text.encode(bytes)) == bytes);
  }
}

TEST_CASE("names of special tokens in a text are text") {
  const TokenText text = TokenText::load(kStories);
  const Ids ids = text.encode("</s>");
  CHECK(std::count(ids.begin(), ids.end(), 2) == 0);
  CHECK(text.decode(ids) == "</s>");
}

TEST_CASE("a byte that the vocabulary lacks cannot be encoded") {
  const std::string steps =
      R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},
         {"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"pre_tokenizer":null,
         "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
         {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})";
  const TokenText text = load(sentence_piece(R"("byte_fallback":true,"vocab":{"▁":0,"a":1,"<0x42>":2})", steps));
  CHECK(text.encode("aB") == Ids{0, 1, 2});
  check_error(ErrorKind::kConfig, {"the vocabulary has no token for 'C'"}, [&] { (void)text.encode("aC"); });
  check_error(ErrorKind::kIo, {"tokenizer.json: the token 'ab' of a merge or template is not in its vocabulary"},
              [&] { load(sentence_piece(R"("vocab":{"a":0,"b":1},"merges":["a b"])", steps)); });
}

TEST_CASE("Metaspace decoders mark spaces too") {
  const std::string model = R"("vocab":{"▁a":0,"<0x41>":1},"byte_fallback":true)";
  const TokenText first =
      load(sentence_piece(model, R"("decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"})"));
  CHECK(first.decode(Ids{0, 0, 1}) == "a aA");
  const TokenText never =
      load(sentence_piece(model, R"("decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"never"})"));
  CHECK(never.decode(Ids{0, 0}) == " a a");
  CHECK_FALSE(never.why_not_encode().empty());
}

TEST_CASE("other decoders are refused") {
  for (const char* decoder :
       {R"({"type":"WordPiece","prefix":"##"})", "null", R"({"type":"Metaspace","replacement":"_"})"}) {
    check_error(ErrorKind::kIo, {"tokenizer.json: its decoder is neither ByteLevel"},
                [&] { load(sentence_piece(R"("vocab":{})", R"("decoder":)" + std::string(decoder))); });
  }
}

TEST_CASE("a model's vocabulary is its tokenizer.json, or bytes where it has 256 tokens") {
  const TemporaryFolder folder;
  CHECK(find_token_text(folder.path(), 256)->size() == 256);
  CHECK_FALSE(find_token_text(folder.path(), 512).has_value());
  folder.write("tokenizer.json", kByteLevel);
  CHECK(find_token_text(folder.path(), 256)->size() == 11);
}

}  // namespace
}  // namespace ferry
