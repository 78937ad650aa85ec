// SPDX-License-Identifier: Apache-2.0
// Layers by number, columns by their widest cell.
#include "cli/tensor_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "cli/text_report.h"
#include "core/human_units.h"
#include "io/printable.h"

namespace ferry {
namespace {

struct Row {
  std::string name;
  std::string dtype;
  std::string shape;
  std::size_t size_bytes = 0;

  bool operator==(const Row&) const = default;
};

using Layers = std::map<std::int64_t, std::vector<Row>>;

/// A tensor outside of layers, or all layers of one prefix.
struct Block {
  std::string prefix;  // "model.layers."; empty for a single tensor
  Row row;
  Layers layers;
};

/// "model.layers.12.mlp.up_proj.weight" in parts: the first number between dots is the layer's.
struct LayerName {
  std::string prefix;
  std::int64_t number = 0;
  std::string rest;
};

std::optional<LayerName> split_name(const std::string& name) {
  const char* const end = name.data() + name.size();
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    std::int64_t number = 0;
    const auto [after, failure] = std::from_chars(name.data() + dot + 1, end, number);
    const bool whole = failure == std::errc() && number >= 0 && after != end && *after == '.';
    if (whole) return LayerName{name.substr(0, dot + 1), number, std::string(after + 1, end)};
  }
  return std::nullopt;
}

Row row_of(const SafetensorsEntry& entry, const std::string& name) {
  return {.name = printable_name(name),
          .dtype = entry.dtype,
          .shape = describe_shape(entry.shape),
          .size_bytes = entry.bytes.size()};
}

std::vector<Block> blocks_of(const std::vector<SafetensorsEntry>& entries, bool all) {
  std::vector<Block> blocks;
  std::map<std::string, std::size_t> block_of;  // by prefix
  for (const SafetensorsEntry& entry : entries) {
    const std::optional<LayerName> name = all ? std::nullopt : split_name(entry.name);
    if (!name) {
      blocks.push_back({.prefix = "", .row = row_of(entry, entry.name), .layers = {}});
      continue;
    }
    const auto [place, is_new] = block_of.try_emplace(name->prefix, blocks.size());
    if (is_new) blocks.push_back({.prefix = name->prefix, .row = {}, .layers = {}});
    blocks[place->second].layers[name->number].push_back(row_of(entry, name->rest));
  }
  return blocks;
}

/// A line of the table: a row, or a heading that has a name alone.
struct Line {
  Row row;
  bool is_heading = false;
};

/// Layers follow each other and agree.
void add_layers(const Block& block, std::vector<Line>& lines) {
  for (auto first = block.layers.begin(); first != block.layers.end();) {
    auto end = std::next(first);
    std::int64_t last = first->first;
    while (end != block.layers.end() && end->first == last + 1 && end->second == first->second) {
      last = end->first;
      ++end;
    }
    std::string heading = fmt::format("{}{}", printable_name(block.prefix), first->first);
    if (last > first->first) heading += fmt::format("-{}, each", last);
    lines.push_back({.row = {.name = heading, .dtype = "", .shape = "", .size_bytes = 0}, .is_heading = true});
    for (const Row& row : first->second) {
      lines.push_back({.row = row, .is_heading = false});
      lines.back().row.name.insert(0, "  ");
    }
    first = end;
  }
}

}  // namespace

std::string tensor_summary(const std::vector<SafetensorsEntry>& entries) {
  std::map<std::string, std::size_t> bytes_of;  // by dtype
  std::int64_t n_elems = 0;
  for (const SafetensorsEntry& entry : entries) {
    bytes_of[entry.dtype] += entry.bytes.size();
    n_elems += entry.elems();
  }
  std::vector<std::string> parts;
  for (const auto& [dtype, bytes] : bytes_of) parts.push_back(fmt::format("{} in {}", human_bytes(bytes), dtype));
  return fmt::format("{} tensors, {} elements: {}", grouped(std::ssize(entries)), grouped(n_elems),
                     parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", ")));
}

std::vector<std::string> tensor_table(const std::vector<SafetensorsEntry>& entries, bool all) {
  std::vector<Line> lines;
  for (const Block& block : blocks_of(entries, all)) {
    if (block.prefix.empty()) {
      lines.push_back({.row = block.row, .is_heading = false});
    } else {
      add_layers(block, lines);
    }
  }
  std::size_t name_width = 0;
  std::size_t dtype_width = 0;
  std::size_t shape_width = 0;
  for (const auto& [row, is_heading] : lines) {
    if (is_heading) continue;
    name_width = std::max(name_width, row.name.size());
    dtype_width = std::max(dtype_width, row.dtype.size());
    shape_width = std::max(shape_width, row.shape.size());
  }
  std::vector<std::string> texts;
  for (const auto& [row, is_heading] : lines) {
    texts.push_back(is_heading ? "  " + row.name
                               : fmt::format("  {:<{}}  {:<{}} {:<{}} {:>8}", row.name, name_width, row.dtype,
                                             dtype_width, row.shape, shape_width, human_bytes(row.size_bytes)));
  }
  return texts;
}

}  // namespace ferry
