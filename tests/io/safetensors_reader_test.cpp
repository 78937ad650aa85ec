// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <random>

#include "io/file_test_helpers.h"
#include "io/safetensors.h"

namespace ferry {
namespace {

using namespace test;

std::string with_length(std::uint64_t header_bytes, const std::string& rest) {
  return bytes_of(std::vector<std::uint64_t>{header_bytes}) + rest;
}

// A file with this header and `n_data_bytes` bytes of data, none of them zero.
std::string file_of(const std::string& header, std::size_t n_data_bytes) {
  return with_length(header.size(), header + std::string(n_data_bytes, 'd'));
}

void check_refused(const std::string& content, const std::vector<std::string>& parts) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  write_file(path, content);
  check_error(ErrorKind::kIo, parts, [&] { SafetensorsFile{path}; });
  check_error(ErrorKind::kIo, {path.string()}, [&] { SafetensorsFile{path}; });
}

// A tensor 'a' of 8 bytes with this entry.
void check_entry_refused(const std::string& entry, const std::vector<std::string>& parts) {
  check_refused(file_of(R"({"a":)" + entry + "}", 8), parts);
}

TEST_CASE("tensors are found with dtype, shape, bytes and metadata") {
  const TemporaryFolder folder;
  const std::string header = R"({"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]},
    "__metadata__":{"format":"pt","note":"x"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
    "none":{"shape":[3,0],"data_offsets":[8,8],"dtype":"I64"},"scalar":{"dtype":"U8","shape":[],"data_offsets":[12,13]}}  )";
  write_file(folder / "x", with_length(header.size(), header + bytes_of(std::vector<float>{1, 2}) + "abcde"));
  const SafetensorsFile file(folder / "x");
  REQUIRE(file.entries().size() == 4);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"note", "x"}});
  CHECK(file.entries()[0].name == "a");
  CHECK(file.entries()[1].name == "none");
  CHECK(file.find("none")->elems() == 0);
  CHECK(file.find("scalar")->elems() == 1);
  CHECK(file.find("scalar")->shape.empty());
  CHECK(file.find("absent") == nullptr);
  const SafetensorsEntry& b = *file.find("b");
  CHECK(b.dtype == "BF16");
  CHECK(b.shape == std::vector<std::int64_t>{1, 2});
  CHECK(std::string(reinterpret_cast<const char*>(b.bytes.data()), b.bytes.size()) == "abcd");
}

TEST_CASE("every dtype of the format opens, narrow ones included") {
  const TemporaryFolder folder;
  for (const char* dtype :
       {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16", "U16", "F16",     "BF16",
        "I32",  "U32", "F32", "F64",     "I64",     "U64",     "C64", "F4",  "F6_E2M3", "F6_E3M2"}) {
    const auto n_bytes = static_cast<std::size_t>(safetensors_dtype_bits(dtype));  // eight elements
    const std::string header = R"({"a":{"dtype":")" + std::string(dtype) + R"(","shape":[8],"data_offsets":[0,)" +
                               std::to_string(n_bytes) + "]}}";
    write_file(folder / "x", file_of(header, n_bytes));
    CHECK(SafetensorsFile(folder / "x").find("a")->dtype == dtype);
  }
}

TEST_CASE("a file without tensors opens") {
  const TemporaryFolder folder;
  write_file(folder / "x", file_of("{}", 0));
  CHECK(SafetensorsFile(folder / "x").entries().empty());
}

TEST_CASE("tensors beyond 2 GiB are addressed") {
  const TemporaryFolder folder;
  const std::int64_t big_bytes = 5LL << 30;
  const std::string header = R"({"big":{"dtype":"U8","shape":[5368709120],"data_offsets":[0,5368709120]},)"
                             R"("last":{"dtype":"F32","shape":[1],"data_offsets":[5368709120,5368709124]}})";
  write_file(folder / "x", with_length(header.size(), header));
  const auto data_begin = static_cast<std::int64_t>(std::filesystem::file_size(folder / "x"));
  std::filesystem::resize_file(folder / "x", static_cast<std::uintmax_t>(data_begin + big_bytes));  // sparse
  std::ofstream(folder / "x", std::ios::binary | std::ios::app) << bytes_of(std::vector<float>{42});
  const SafetensorsFile file(folder / "x");
  float value = 0;
  std::memcpy(&value, file.find("last")->bytes.data(), sizeof(value));
  CHECK(value == 42);
  CHECK(file.find("big")->elems() == big_bytes);
}

TEST_CASE("a file shorter than the header's length is refused") {
  check_refused("", {"0 bytes, expected at least 8"});
  check_refused("1234567", {"7 bytes, expected at least 8"});
}

TEST_CASE("a header length beyond the limit is refused, whatever the file's size") {
  check_refused(with_length(100'000'001, "{}"), {"claims 100000001 bytes, the limit is 100000000"});
  check_refused(with_length(~0ULL, "{}"), {"claims 18446744073709551615 bytes"});
}

TEST_CASE("a truncated header is refused") {
  check_refused(with_length(3, "{}"), {"truncated: its header claims 3 bytes, 2 follow"});
}

TEST_CASE("a header that is no JSON object is refused") {
  check_refused(file_of("", 0), {"does not begin with '{'"});
  check_refused(file_of("[]", 0), {"does not begin with '{'"});
  check_refused(file_of(" {}", 0), {"does not begin with '{'"});
}

TEST_CASE("a header with malformed JSON or trailing garbage is refused") {
  check_refused(file_of("{", 0), {"malformed JSON"});
  check_refused(file_of("{}{}", 0), {"malformed JSON at byte 3"});
  check_refused(file_of(std::string("{}\0{", 4), 0), {"a zero byte"});
}

TEST_CASE("a deep header is refused") {
  check_refused(file_of(R"({"a":)" + std::string(100'000, '['), 0), {"tensor 'a': its entry is an array"});
  check_entry_refused(R"({"shape":[)" + std::string(100'000, '['), {"tensor 'a': shape holds an array"});
}

TEST_CASE("a tensor that is declared twice is refused") {
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                        R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                        8),
                {"'a' occurs twice"});
}

TEST_CASE("an entry of the wrong type is refused") { check_entry_refused("3", {"tensor 'a': its entry is 3"}); }

TEST_CASE("metadata of the wrong type is refused") {
  check_refused(file_of(R"({"__metadata__":[]})", 0), {"__metadata__ is an array, expected an object"});
  check_refused(file_of(R"({"__metadata__":{"a":1}})", 0), {"metadata 'a' is 1, expected a string"});
}

TEST_CASE("fields of the wrong type are refused") {
  check_entry_refused(R"({"dtype":7})", {"tensor 'a': dtype is 7, expected a string"});
  check_entry_refused(R"({"shape":"x"})", {"tensor 'a': shape is the string 'x', expected an array"});
  check_entry_refused(R"({"data_offsets":{}})", {"tensor 'a': data_offsets is an object, expected an array"});
}

TEST_CASE("offsets that are not a begin and an end are refused") {
  check_entry_refused(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})",
                      {"tensor 'a'", "1 data_offsets, expected a begin and an end"});
}

TEST_CASE("dimensions and offsets that are no counts are refused") {
  for (const char* value : {"-1", "1.0", "null", "\"1\"", "[]", "{}", "9223372036854775808"}) {
    check_entry_refused(R"({"shape":[)" + std::string(value) + "]}", {"tensor 'a'", "shape holds"});
  }
  check_entry_refused(R"({"data_offsets":[-8,0]})", {"tensor 'a'", "data_offsets holds -8"});
}

TEST_CASE("an unknown field is refused") { check_entry_refused(R"({"scale":1})", {"unknown field 'scale'"}); }

TEST_CASE("missing fields are refused") {
  check_entry_refused(R"({"shape":[2],"data_offsets":[0,8]})", {"tensor 'a': no dtype"});
  check_entry_refused(R"({"dtype":"F32","data_offsets":[0,8]})", {"tensor 'a': no shape"});
  check_entry_refused(R"({"dtype":"F32","shape":[2]})", {"tensor 'a': 0 data_offsets"});
  check_entry_refused(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})", {"tensor 'a': 3 data_offsets"});
}

TEST_CASE("an unknown dtype is refused") {
  check_entry_refused(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", {"tensor 'a': unknown dtype 'F33'"});
}

TEST_CASE("a shape that overflows is refused") {
  check_entry_refused(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})",
                      {"tensor 'a': shape (4294967296, 4294967296) is too large"});
  check_entry_refused(R"({"dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,8]})", {"is too large"});
}

TEST_CASE("a partial byte is refused") {
  check_entry_refused(R"({"dtype":"F4","shape":[3],"data_offsets":[0,8]})", {"no whole number of bytes"});
}

TEST_CASE("offsets that run backwards are refused") {
  check_entry_refused(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", {"[8, 0] end before they begin"});
}

TEST_CASE("offsets beyond the data are refused") {
  check_entry_refused(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})", {"outside of the file's 8 data bytes"});
  check_entry_refused(R"({"dtype":"F32","shape":[0],"data_offsets":[9223372036854775807,9223372036854775807]})",
                      {"outside of the file's 8 data bytes"});
}

TEST_CASE("offsets that do not match dtype and shape are refused") {
  check_entry_refused(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})", {"span 8 bytes, F32 (1) takes 4"});
}

TEST_CASE("overlapping tensors are refused") {
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
                        R"("b":{"dtype":"U8","shape":[6],"data_offsets":[2,8]}})",
                        8),
                {"tensor 'b' overlaps the one before it by 4 bytes"});
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                        R"("b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                        8),
                {"overlaps the one before it by 8 bytes"});
}

TEST_CASE("a gap between tensors is refused") {
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[1,8]}})", 8),
                {"1 bytes before tensor 'a' belong to no tensor"});
}

TEST_CASE("trailing bytes are refused") {
  check_refused(file_of(R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})", 8),
                {"1 bytes after the last tensor"});
  check_refused(file_of("{}", 1), {"1 bytes after the last tensor"});
}

TEST_CASE("hostile names cannot reach the terminal") {
  check_refused(file_of(R"({"\u001b[2J":3})", 0), {"tensor '\\x1b[2J'"});
}

TEST_CASE("random damage gives an error or a file whose tensors can be read") {
  const TemporaryFolder folder;
  const std::string good = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                   R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}})",
                                   12);
  std::mt19937 random(7);
  int n_refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = good.substr(0, round % 5 == 0 ? random() % good.size() : good.size());
    for (unsigned change = 0; change <= random() % 3 && !damaged.empty(); ++change) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    const auto path = folder / std::to_string(round);  // a new file each: overwriting waits for the disk
    write_file(path, damaged);
    try {
      const SafetensorsFile file(path);
      for (const SafetensorsEntry& entry : file.entries()) {
        CHECK(std::count(entry.bytes.begin(), entry.bytes.end(), std::byte{}) <= entry.elems() * 8);
      }
    } catch (const Error&) {
      ++n_refused;
    }
  }
  CHECK(n_refused > 2000);
}

}  // namespace
}  // namespace ferry
