// SPDX-License-Identifier: Apache-2.0
// Parsing and checking of safetensors headers: every byte is untrusted.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "io/json_events.h"
#include "io/printable.h"
#include "io/safetensors.h"

namespace ferry {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kLargestHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr int kHeaderDepth = 4;                            // valid ones have 3: one more, so that errors name the field

constexpr auto kDTypeBits = std::to_array<std::pair<std::string_view, int>>(
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},    {"F8_E5M2", 8},
     {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16}, {"BF16", 16}, {"I32", 32},
     {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},    {"I64", 64}, {"U64", 64}});

// A tensor as the header declares it.
struct Declaration {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> offsets;  // begin and end in the data
  bool has_shape = false;
};

// Collects declarations and metadata from the events of the header's JSON.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  void on_event(const JsonEvent& event) {
    switch (event.path.size()) {
      case 0: require(event, JsonEvent::Kind::kObject, file_, "the header"); return;
      case 1: begin_entry(event); return;
      case 2: in_metadata_ ? read_metadata(event) : read_field(event); return;
      default: read_number(event); return;
    }
  }

  std::vector<Declaration> tensors;
  std::map<std::string, std::string> metadata;

 private:
  static void require(const JsonEvent& event, JsonEvent::Kind kind, const std::string& origin, std::string_view what) {
    constexpr std::array<const char*, 4> kKindNames{"an object", "an array", "a string", "an integer"};
    FERRY_CHECK(event.kind == kind, kIo, "{}: {} is {}, expected {}", origin, what, describe(event),
                kKindNames.at(static_cast<std::size_t>(kind)));
  }

  std::string origin() const { return fmt::format("{}: tensor '{}'", file_, printable_name(tensors.back().name)); }

  void begin_entry(const JsonEvent& event) {
    in_metadata_ = event.path[0] == "__metadata__";
    if (!in_metadata_) tensors.push_back({event.path[0], {}, {}, {}, false});
    require(event, JsonEvent::Kind::kObject, in_metadata_ ? file_ : origin(),
            in_metadata_ ? "__metadata__" : "its entry");
  }

  void read_metadata(const JsonEvent& event) {
    require(event, JsonEvent::Kind::kString, file_, "metadata '" + printable_name(event.path[1]) + "'");
    metadata[event.path[1]] = event.text;
  }

  void read_field(const JsonEvent& event) {
    const std::string& field = event.path[1];
    if (field == "dtype") {
      require(event, JsonEvent::Kind::kString, origin(), field);
      tensors.back().dtype = event.text;
    } else if (field == "shape" || field == "data_offsets") {
      require(event, JsonEvent::Kind::kArray, origin(), field);
      tensors.back().has_shape |= field == "shape";
    } else {
      FERRY_CHECK(false, kIo, "{}: unknown field '{}', expected dtype, shape and data_offsets", origin(),
                  printable_name(field));
    }
  }

  void read_number(const JsonEvent& event) {
    const std::string& field = event.path[1];
    FERRY_CHECK(event.kind == JsonEvent::Kind::kInteger && event.integer >= 0, kIo,
                "{}: {} holds {}, expected integers from 0 to 2^63 - 1", origin(), printable_name(field),
                describe(event));
    (field == "shape" ? tensors.back().shape : tensors.back().offsets).push_back(event.integer);
  }

  const std::string& file_;
  bool in_metadata_ = false;
};

std::string_view header_text(const std::string& file, std::span<const std::byte> bytes) {
  const auto file_bytes = static_cast<std::int64_t>(bytes.size());
  FERRY_CHECK(file_bytes >= kLengthBytes, kIo, "{}: no safetensors file: {} bytes, expected at least 8", file,
              file_bytes);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  FERRY_CHECK(header_bytes <= kLargestHeaderBytes, kIo,
              "{}: no safetensors file, or damaged: its header claims {} bytes, the limit is {}", file, header_bytes,
              kLargestHeaderBytes);
  FERRY_CHECK(static_cast<std::int64_t>(header_bytes) <= file_bytes - kLengthBytes, kIo,
              "{}: truncated: its header claims {} bytes, {} follow; copy or download it again", file, header_bytes,
              file_bytes - kLengthBytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  FERRY_CHECK(text.starts_with('{'), kIo, "{}: no safetensors file: its header does not begin with '{{'", file);
  return text;
}

SafetensorsEntry check_tensor(const std::string& file, Declaration& declared, std::span<const std::byte> data) {
  const std::string origin = fmt::format("{}: tensor '{}'", file, printable_name(declared.name));
  FERRY_CHECK(!declared.dtype.empty(), kIo, "{}: no dtype", origin);
  FERRY_CHECK(declared.has_shape, kIo, "{}: no shape", origin);
  FERRY_CHECK(declared.offsets.size() == 2, kIo, "{}: {} data_offsets, expected a begin and an end", origin,
              declared.offsets.size());
  const std::int64_t size_bytes = detail::safetensors_bytes(origin, declared.dtype, declared.shape);
  const auto data_bytes = static_cast<std::int64_t>(data.size());
  const std::int64_t begin = declared.offsets[0];
  const std::int64_t end = declared.offsets[1];
  FERRY_CHECK(begin <= end, kIo, "{}: data_offsets [{}, {}] end before they begin", origin, begin, end);
  FERRY_CHECK(end <= data_bytes, kIo, "{}: data_offsets [{}, {}] lie outside of the file's {} data bytes", origin,
              begin, end, data_bytes);
  FERRY_CHECK(end - begin == size_bytes, kIo, "{}: data_offsets span {} bytes, {} {} takes {}", origin, end - begin,
              declared.dtype, describe_shape(declared.shape), size_bytes);
  return {std::move(declared.name), std::move(declared.dtype), std::move(declared.shape),
          data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size_bytes))};
}

// `entries` are sorted by their data.
void check_coverage(const std::string& file, std::span<const std::byte> data,
                    const std::vector<SafetensorsEntry>& entries) {
  const std::byte* covered = data.data();
  for (const SafetensorsEntry& entry : entries) {
    const auto gap = entry.bytes.data() - covered;
    FERRY_CHECK(gap >= 0, kIo, "{}: tensor '{}' overlaps the one before it by {} bytes", file,
                printable_name(entry.name), -gap);
    FERRY_CHECK(gap == 0, kIo, "{}: {} bytes before tensor '{}' belong to no tensor", file, gap,
                printable_name(entry.name));
    covered += entry.bytes.size();
  }
  const auto trailing = data.data() + data.size() - covered;
  FERRY_CHECK(trailing == 0, kIo, "{}: {} bytes after the last tensor belong to none", file, trailing);
}

}  // namespace

int safetensors_dtype_bits(std::string_view dtype) {
  for (const auto& [name, bits] : kDTypeBits) {
    if (name == dtype) return bits;
  }
  return 0;
}

const char* safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kBf16: return "BF16";
    case DType::kI32: return "I32";
    case DType::kI16: return "I16";
  }
  return "";
}

std::string describe_shape(std::span<const std::int64_t> shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

std::int64_t SafetensorsEntry::elems() const {
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) count *= dimension;
  return count;
}

std::int64_t detail::safetensors_bytes(const std::string& origin, std::string_view dtype,
                                       std::span<const std::int64_t> shape) {
  const int bits = safetensors_dtype_bits(dtype);
  FERRY_CHECK(bits > 0, kIo, "{}: unknown dtype '{}'", origin, printable_name(dtype));
  std::int64_t elems = 1;
  bool overflow = false;
  for (const std::int64_t dimension : shape) {
    FERRY_CHECK(dimension >= 0, kIo, "{}: shape {} has a negative dimension", origin, describe_shape(shape));
    overflow |= __builtin_mul_overflow(elems, dimension, &elems);
  }
  std::int64_t size_bits = 0;
  overflow |= __builtin_mul_overflow(elems, static_cast<std::int64_t>(bits), &size_bits);
  FERRY_CHECK(!overflow, kIo, "{}: shape {} is too large", origin, describe_shape(shape));
  FERRY_CHECK(size_bits % 8 == 0, kIo, "{}: {} {} is no whole number of bytes", origin, dtype, describe_shape(shape));
  return size_bits / 8;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string file = path.string();
  const std::string_view header = header_text(file, file_.bytes());
  HeaderReader reader(file);
  read_json(header, file, kHeaderDepth, [&reader](const JsonEvent& event) { reader.on_event(event); });
  metadata_ = std::move(reader.metadata);

  const auto data = file_.bytes().subspan(static_cast<std::size_t>(kLengthBytes) + header.size());
  entries_.reserve(reader.tensors.size());
  for (Declaration& declared : reader.tensors) entries_.push_back(check_tensor(file, declared, data));
  std::ranges::sort(entries_, {}, [](const SafetensorsEntry& entry) {
    return std::pair(entry.bytes.data(), entry.bytes.size());  // an empty tensor before the one that begins there
  });
  check_coverage(file, data, entries_);
  for (std::size_t i = 0; i < entries_.size(); ++i) index_by_name_.emplace(entries_[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_by_name_.find(name);
  return found == index_by_name_.end() ? nullptr : &entries_[found->second];
}

}  // namespace ferry
