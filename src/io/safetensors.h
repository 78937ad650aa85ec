// SPDX-License-Identifier: Apache-2.0
// Files of named tensors in the safetensors format: 8-byte little-endian header length, JSON header, data.
// Source: https://github.com/huggingface/safetensors, section "Format".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "io/atomic_file.h"
#include "io/mapped_file.h"

namespace ferry {

/// Bits per element of a dtype as safetensors spells it ("F32", "BF16", "F8_E4M3", "I64", ...); 0 when unknown.
int safetensors_dtype_bits(std::string_view dtype);

/// "F32", "BF16", "I32", "I16"
const char* safetensors_dtype(DType dtype);

/// "(2, 3)"
std::string describe_shape(std::span<const std::int64_t> shape);

/// A tensor of a mapped file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;                 // as in the file; any that safetensors_dtype_bits knows
  std::vector<std::int64_t> shape;   // empty = one element; may hold zeros
  std::span<const std::byte> bytes;  // row-major, little-endian, of any alignment; lives as long as the file object

  std::int64_t elems() const;
};

/// Reads by mapping: opening costs the header alone, and tensors may lie beyond 2 GiB.
class SafetensorsFile {
 public:
  /// Checks the whole header before anything is used: length, JSON types and depth, duplicate names, dtypes, shape
  /// overflow, and that the tensors cover the data without gap, overlap or trailing bytes.
  /// Throws Error{kIo} with the file and the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Of the file: the header, then the data of entries().
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  /// In the order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  /// Null when absent; valid as long as this object.
  const SafetensorsEntry* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::size_t, std::less<>> index_by_name_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written.
struct SafetensorsSpec {
  std::string name;
  std::string dtype;  // as safetensors spells it
  std::vector<std::int64_t> shape;
};

/// Writes tensors as their bytes become available: the whole table first, then the data in the same order, in pieces of
/// any size, so that no tensor needs to be in memory at once. The file appears when finish() returns.
class SafetensorsWriter {
 public:
  /// The default metadata is what transformers asks for. Throws Error{kIo}: cannot be created; a duplicate, empty or
  /// reserved name, an unknown dtype, a bad shape; a tensor that would start off its alignment (declare wide dtypes
  /// before narrow ones).
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// The next bytes of tensor `name`. Throws Error{kIo}: not the tensor whose turn it is, or more bytes than it has.
  void append(std::string_view name, std::span<const std::byte> bytes);

  /// Blocks until the file is on the disk; what it holds. Throws Error{kIo} when bytes of a tensor are missing.
  FileDigest finish();

 private:
  void skip_complete_tensors();

  AtomicFile file_;
  std::vector<SafetensorsSpec> tensors_;
  std::vector<std::int64_t> remaining_bytes_;  // per tensor
  std::size_t current_ = 0;                    // the first tensor with bytes to come
};

namespace detail {
/// Bytes of a tensor. Throws Error{kIo} that begins with `origin`: unknown dtype, negative dimension, overflow,
/// a size that is no whole number of bytes.
std::int64_t safetensors_bytes(const std::string& origin, std::string_view dtype, std::span<const std::int64_t> shape);
}  // namespace detail

}  // namespace ferry
