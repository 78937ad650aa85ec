// SPDX-License-Identifier: Apache-2.0
// How fast a backend runs its ops, beside what the machine can do: `ferry bench ops`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/simd.h"

namespace ferry {

/// What an op cannot be faster than.
enum class OpBound : std::uint8_t {
  kProduct,     // products by the best known one of that shape
  kArithmetic,  // attention by the fastest product of its dtype and model
  kMemory,      // the rest by a copy of as many bytes
};

/// One op at one shape.
struct OpBenchRow {
  std::string op;     // "y = x W^T"
  std::string shape;  // "512 x 8192 x 2048": rows, columns, depth
  DType dtype = DType::kF32;
  double ms = 0;
  double rate = 0;       // in `unit`
  std::string unit;      // "GFLOP/s", "TFLOP/s", or "GB/s" of the elements that the op reads and writes
  double yardstick = 0;  // the same rate of what `bound` says; 0 = none, as for other_attention
  OpBound bound = OpBound::kMemory;
  int n_candidates = 0;  // cuBLASLt's algorithms that were tried for the yardstick of a product

  /// Of what the yardstick reaches.
  double ratio() const { return rate / yardstick; }
};

/// What the ops are shaped like: one layer of a model, and a chunk of its head.
struct OpBenchModel {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t width = 0;         // C
  std::int64_t ffn_width = 0;     // F
  std::int64_t n_heads = 0;       // H
  std::int64_t n_kv_heads = 0;    // G
  std::int64_t head_dim = 0;      // D
  std::int64_t vocab_chunk = 0;   // rows of the head at a time
  std::int64_t narrow_batch = 0;  // batch of ops on (N, C) alone, which move less
  std::vector<DType> dtypes = {DType::kF32, DType::kBf16};

  std::int64_t rows() const { return batch * length; }
};

struct OpBenchOptions {
  /// Times ops back to back, as a step runs them, without products of the host; adds the products of the head, ops with
  /// residuals, embedding rows, casts and AdamW.
  bool device = false;
  int threads = 1;                       // of the Eigen products: as many as the backend uses
  SimdLevel level = SimdLevel::kScalar;  // of the Eigen products
  double seconds_per_op = 0.3;           // the fastest repetition within it counts
  /// Times attention of bf16 too, on memory and streams of the backend at hand, in rows of their own; null = none.
  Backend* other_attention = nullptr;
  std::string other_attention_name;
  std::vector<OpBenchModel> models;
};

/// On the host the tiny model and a slice of a 1B model. On a device 1B and 8B models, 4 x 2048 tokens: tensors are far
/// larger than any L2 cache (60 MB on an H200).
std::vector<OpBenchModel> op_bench_models(bool device);

/// Calls `report` after each row. Products stand beside plain f32 Eigen ones on the host, on a CUDA device beside the
/// fastest of all algorithms that cuBLASLt proposes, found anew; other devices have no yardstick for them.
/// Blocks; takes about 100 times seconds_per_op, and a minute or two for cuBLASLt's algorithms. Throws Error{kMemory}
/// when the tensors of one op (300 MB on the host, 6 GB on a device) do not fit.
std::vector<OpBenchRow> bench_ops(Backend& backend, const OpBenchOptions& options,
                                  const std::function<void(const OpBenchRow&)>& report);

/// Lines below the table: the lowest ratio among products and among what memory bounds, and the lowest of all. Those
/// without a row that has a yardstick are left out.
std::vector<std::string> op_bench_summary(const std::vector<OpBenchRow>& rows);

/// One line of the table per row; the header names the columns.
std::string op_bench_header();
std::string to_line(const OpBenchRow& row);

}  // namespace ferry
