// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_table.h"

#include "catch.h"

using namespace ferry;

namespace {

using Lines = std::vector<std::string>;

struct Tensors {
  void add(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape) {
    SafetensorsEntry entry{.name = name, .dtype = dtype, .shape = std::move(shape), .bytes = {}};
    const auto bytes = static_cast<std::size_t>(entry.elems() * safetensors_dtype_bits(dtype) / 8);
    entry.bytes = {static_cast<const std::byte*>(nullptr), bytes};  // sizes alone are read
    entries.push_back(std::move(entry));
  }

  std::vector<SafetensorsEntry> entries;
};

Tensors two_kinds_of_layers() {
  Tensors t;
  t.add("embed.weight", "F32", {512, 64});
  for (const std::string layer : {"10", "9", "0", "1", "3"}) {
    t.add("layers." + layer + ".up.weight", "BF16", {8, 64});
    t.add("layers." + layer + ".norm", "F32", {layer == "10" ? 65 : 64});
  }
  t.add("norm", "F32", {64});
  return t;
}

}  // namespace

TEST_CASE("equal neighbouring layers share their lines, in the order of their numbers") {
  CHECK(tensor_table(two_kinds_of_layers().entries, false) == Lines{
                                                                  "  embed.weight  F32  (512, 64)  128 KiB",
                                                                  "  layers.0-1, each",
                                                                  "    up.weight   BF16 (8, 64)    1.0 KiB",
                                                                  "    norm        F32  (64)         256 B",
                                                                  "  layers.3",
                                                                  "    up.weight   BF16 (8, 64)    1.0 KiB",
                                                                  "    norm        F32  (64)         256 B",
                                                                  "  layers.9",
                                                                  "    up.weight   BF16 (8, 64)    1.0 KiB",
                                                                  "    norm        F32  (64)         256 B",
                                                                  "  layers.10",
                                                                  "    up.weight   BF16 (8, 64)    1.0 KiB",
                                                                  "    norm        F32  (65)         260 B",
                                                                  "  norm          F32  (64)         256 B",
                                                              });
}

TEST_CASE("all tensors are listed with their whole names, in the order of the file") {
  const Lines lines = tensor_table(two_kinds_of_layers().entries, true);
  REQUIRE(lines.size() == 12);
  CHECK(lines[1].starts_with("  layers.10.up.weight  BF16"));
  CHECK(lines[5].starts_with("  layers.0.up.weight   BF16"));
}

TEST_CASE("tensors of Llama 3 and of its optimizer fit a terminal") {
  Tensors t;
  t.add("model.embed_tokens.weight.second_moment", "BF16", {128256, 16384});
  t.add("model.layers.0.post_attention_layernorm.weight.second_moment", "BF16", {16384});
  for (const std::string& line : tensor_table(t.entries, false)) CHECK(line.size() <= 80);
}

TEST_CASE("names are shown safely, odd numbers are no layers") {
  Tensors t;
  t.add("a\x1b[2J.0.b", "F32", {});
  for (const char* name : {"x.0", "x.-1.y", "x.99999999999999999999.y", "1.x", "x..y", ".", ""}) t.add(name, "F32", {});
  const Lines lines = tensor_table(t.entries, false);
  CHECK(lines.size() == 9);
  for (const std::string& line : lines) CHECK(line.find('\x1b') == std::string::npos);
  CHECK(lines[0] == "  a\\x1b[2J.0");
}

TEST_CASE("a file is summed up by dtype") {
  CHECK(tensor_summary(two_kinds_of_layers().entries) ==
        "12 tensors, 35,713 elements: 5.0 KiB in BF16, 130 KiB in F32");
  CHECK(tensor_summary({}) == "0 tensors, 0 elements: nothing");
}
