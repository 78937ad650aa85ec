// SPDX-License-Identifier: Apache-2.0
// Header layout and streaming of safetensors files.
#include <fmt/core.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "io/printable.h"
#include "io/safetensors.h"

namespace ferry {
namespace {

constexpr std::size_t kDataAlignment = 8;  // of the start of the data in the file

std::string origin_of(const AtomicFile& file, std::string_view name) {
  return fmt::format("{}: tensor '{}'", file.destination().string(), printable_name(name));
}

// PyTorch views the data in place and refuses a tensor that starts at no multiple of its element size.
void check_alignment(const std::string& origin, const SafetensorsSpec& tensor, std::int64_t begin) {
  const int element_bytes = (safetensors_dtype_bits(tensor.dtype) + 7) / 8;
  FERRY_CHECK(begin % element_bytes == 0, kIo, "{}: {} would start at data byte {}: declare wide dtypes first", origin,
              tensor.dtype, begin);
}

std::string dump(const nlohmann::ordered_json& header, const std::string& path) {
  try {
    return header.dump();
  } catch (const nlohmann::json::exception&) {
    FERRY_CHECK(false, kIo, "{}: a tensor name or its metadata is not UTF-8", path);
  }
  return {};
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), tensors_(std::move(tensors)) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::unordered_set<std::string_view> names{"", "__metadata__"};
  std::int64_t begin = 0;
  for (const SafetensorsSpec& tensor : tensors_) {
    const std::string origin = origin_of(file_, tensor.name);
    FERRY_CHECK(names.insert(tensor.name).second, kIo, "{}: the name is empty, reserved or used twice", origin);
    const std::int64_t size_bytes = detail::safetensors_bytes(origin, tensor.dtype, tensor.shape);
    check_alignment(origin, tensor, begin);
    std::int64_t end = 0;
    FERRY_CHECK(!__builtin_add_overflow(begin, size_bytes, &end), kIo, "{}: the file would be too large", origin);
    header.push_back({tensor.name, {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}}});
    remaining_bytes_.push_back(size_bytes);
    begin = end;
  }

  std::string text = dump(header, path.string());
  text.append((kDataAlignment - text.size() % kDataAlignment) % kDataAlignment, ' ');
  const std::uint64_t header_bytes = text.size();
  file_.write(std::as_bytes(std::span(&header_bytes, 1)));
  file_.write(std::as_bytes(std::span(text)));
  skip_complete_tensors();
}

void SafetensorsWriter::skip_complete_tensors() {
  while (current_ < tensors_.size() && remaining_bytes_[current_] == 0) ++current_;
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const std::string_view expected = current_ < tensors_.size() ? std::string_view(tensors_[current_].name) : "";
  FERRY_CHECK(name == expected, kIo, "{}: not its turn: the next bytes belong to '{}'", origin_of(file_, name),
              expected.empty() ? "no tensor" : printable_name(expected));
  const auto n_bytes = static_cast<std::int64_t>(bytes.size());
  FERRY_CHECK(n_bytes <= remaining_bytes_[current_], kIo, "{}: {} bytes given, {} are left to write",
              origin_of(file_, name), n_bytes, remaining_bytes_[current_]);
  file_.write(bytes);
  remaining_bytes_[current_] -= n_bytes;
  skip_complete_tensors();
}

FileDigest SafetensorsWriter::finish() {
  FERRY_CHECK(current_ == tensors_.size(), kIo, "{}: {} bytes are missing", origin_of(file_, tensors_[current_].name),
              remaining_bytes_[current_]);
  file_.commit();
  return file_.digest();
}

}  // namespace ferry
