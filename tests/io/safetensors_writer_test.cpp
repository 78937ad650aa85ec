// SPDX-License-Identifier: Apache-2.0
#include "io/file_test_helpers.h"
#include "io/safetensors.h"

namespace ferry {
namespace {

using namespace test;

void append(SafetensorsWriter& writer, std::string_view name, std::string_view bytes) {
  writer.append(name, std::as_bytes(std::span(bytes)));
}

std::string text_of(const SafetensorsEntry& entry) {
  return {reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()};
}

void check_spec_refused(const std::vector<SafetensorsSpec>& tensors, const std::vector<std::string>& parts) {
  const TemporaryFolder folder;
  check_error(ErrorKind::kIo, parts, [&] { SafetensorsWriter(folder / "x", tensors); });
  CHECK(folder.n_entries() == 0);
}

TEST_CASE("what is written in pieces is read back") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(
      folder / "x", {{"empty", "F32", {0, 3}}, {"a", "F32", {2, 1}}, {"e\u00e9\"", "U8", {3}}, {"end", "U8", {0}}},
      {{"format", "pt"}, {"step", "7"}});
  append(writer, "empty", "");
  append(writer, "a", "1");
  append(writer, "a", "234567");
  append(writer, "a", "8");
  append(writer, "e\u00e9\"", "xyz");
  CHECK(folder.n_entries() == 1);
  CHECK_FALSE(std::filesystem::exists(folder / "x"));
  writer.finish();
  const SafetensorsFile file(folder / "x");
  CHECK(file.entries().size() == 4);
  CHECK(text_of(*file.find("a")) == "12345678");
  CHECK(file.find("a")->shape == std::vector<std::int64_t>{2, 1});
  CHECK(text_of(*file.find("e\u00e9\"")) == "xyz");
  CHECK(file.metadata().at("step") == "7");
  CHECK(reinterpret_cast<std::uintptr_t>(file.entries()[0].bytes.data()) % 8 == 0);
}

TEST_CASE("the default metadata is the one that transformers asks for") {
  const TemporaryFolder folder;
  SafetensorsWriter(folder / "x", {}).finish();
  CHECK(SafetensorsFile(folder / "x").metadata() == std::map<std::string, std::string>{{"format", "pt"}});
}

TEST_CASE("a writer that is not finished leaves nothing") {
  const TemporaryFolder folder;
  { SafetensorsWriter writer(folder / "x", {{"a", "U8", {2}}}); }
  CHECK(folder.n_entries() == 0);
}

TEST_CASE("a tensor out of turn is refused") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", {{"a", "U8", {2}}, {"b", "U8", {2}}});
  append(writer, "a", "1");
  check_error(ErrorKind::kIo, {"tensor 'b': not its turn", "belong to 'a'"}, [&] { append(writer, "b", "1"); });
}

TEST_CASE("bytes after the last tensor are refused") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", {{"a", "U8", {1}}});
  append(writer, "a", "1");
  check_error(ErrorKind::kIo, {"belong to 'no tensor'"}, [&] { append(writer, "a", "1"); });
}

TEST_CASE("more bytes than a tensor has are refused") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", {{"a", "U8", {2}}});
  check_error(ErrorKind::kIo, {"tensor 'a': 3 bytes given, 2 are left"}, [&] { append(writer, "a", "123"); });
}

TEST_CASE("missing bytes are an error and no file") {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "x", {{"a", "F32", {2}}});
    append(writer, "a", "123");
    check_error(ErrorKind::kIo, {"tensor 'a': 5 bytes are missing"}, [&] { writer.finish(); });
  }
  CHECK(folder.n_entries() == 0);
}

TEST_CASE("names that are empty, reserved or used twice are refused") {
  check_spec_refused({{"a", "U8", {1}}, {"a", "U8", {1}}}, {"tensor 'a': the name is empty, reserved or used twice"});
  check_spec_refused({{"", "U8", {1}}}, {"the name is empty"});
  check_spec_refused({{"__metadata__", "U8", {1}}}, {"reserved"});
}

TEST_CASE("a name that is not UTF-8 is refused") { check_spec_refused({{"\xff", "U8", {1}}}, {"is not UTF-8"}); }

TEST_CASE("an unknown dtype or a bad shape is refused before writing") {
  check_spec_refused({{"a", "F33", {1}}}, {"tensor 'a': unknown dtype 'F33'"});
  check_spec_refused({{"a", "F32", {-1}}}, {"tensor 'a': shape (-1) has a negative dimension"});
}

TEST_CASE("a tensor that PyTorch could not view is refused") {
  check_spec_refused({{"a", "BF16", {1}}, {"b", "F32", {1}}},
                     {"tensor 'b': F32 would start at data byte 2", "wide dtypes first"});
}

TEST_CASE("tensors that together exceed int64 are refused") {
  check_spec_refused({{"a", "U8", {INT64_MAX / 8}},
                      {"b", "U8", {INT64_MAX / 8}},
                      {"c", "U8", {INT64_MAX / 8}},
                      {"d", "U8", {INT64_MAX / 8}},
                      {"e", "U8", {INT64_MAX / 8}},
                      {"f", "U8", {INT64_MAX / 8}},
                      {"g", "U8", {INT64_MAX / 8}},
                      {"h", "U8", {INT64_MAX / 8}},
                      {"i", "U8", {INT64_MAX / 8}}},
                     {"tensor 'i': the file would be too large"});
}

}  // namespace
}  // namespace ferry
