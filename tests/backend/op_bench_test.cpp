// SPDX-License-Identifier: Apache-2.0
#include "backend/op_bench.h"

#include <algorithm>
#include <set>

#include "catch.h"

namespace ferry {
namespace {

const OpBenchModel kSmall = {2, 8, 16, 24, 4, 2, 4, 32, 3, {DType::kF32, DType::kBf16}};

std::vector<OpBenchRow> rows_of(bool device) {
  const auto backend = create_backend("cpu", {.threads = 1});
  OpBenchOptions options;
  options.device = device;
  options.seconds_per_op = 0;
  options.models = {kSmall};
  std::vector<OpBenchRow> reported;
  const auto rows = bench_ops(*backend, options, [&](const OpBenchRow& row) { reported.push_back(row); });
  CHECK(reported.size() == rows.size());
  CHECK(backend->device_bytes() == 0);
  CHECK(backend->host_bytes() == 0);
  return rows;
}

std::set<std::string> names(const std::vector<OpBenchRow>& rows) {
  std::set<std::string> result;
  for (const OpBenchRow& row : rows) result.insert(row.op);
  return result;
}

OpBenchRow row_of(const std::vector<OpBenchRow>& rows, const std::string& op, DType dtype) {
  const auto found = std::ranges::find_if(rows, [&](const auto& row) { return row.op == op && row.dtype == dtype; });
  REQUIRE(found != rows.end());
  return *found;
}

}  // namespace

TEST_CASE("bench ops on the host times products beside Eigen, attention beside products, the rest beside copies") {
  const auto rows = rows_of(false);
  CHECK(names(rows) == std::set<std::string>{"y = x W^T", "d_x = d_y W", "d_W = d_y^T x", "attention_forward",
                                             "attention_backward", "rmsnorm_forward", "rmsnorm_backward", "rope",
                                             "swiglu_forward", "swiglu_backward", "sum_of_squares",
                                             "cross_entropy_chunk", "cross_entropy_backward"});
  for (const OpBenchRow& row : rows) {
    INFO(row.op);
    CHECK(row.ms > 0);
    CHECK(row.rate > 0);
    CHECK(row.yardstick > 0);
    CHECK(row.n_candidates == 0);
    CHECK(row.unit == (row.op.starts_with("attention") || row.op.find('=') != std::string::npos ? "GFLOP/s" : "GB/s"));
  }
  CHECK(row_of(rows, "y = x W^T", DType::kBf16).shape == "16 x 32 x 16");
  CHECK(row_of(rows, "rmsnorm_forward", DType::kF32).shape == "24 x 16");
  for (const DType dtype : kSmall.dtypes) {
    double fastest = 0;
    for (const OpBenchRow& row : rows) {
      if (row.bound == OpBound::kProduct && row.dtype == dtype) fastest = std::max(fastest, row.rate);
    }
    CHECK(row_of(rows, "attention_forward", dtype).yardstick == fastest);
    CHECK(row_of(rows, "attention_backward", dtype).yardstick == fastest);
  }
}

TEST_CASE("bench ops for a device times the ops of a whole step back to back") {
  const auto rows = rows_of(true);
  for (const char* op :
       {"y = x W^T + c", "f32 d_x += d_y W", "rmsnorm_forward + x", "rmsnorm_backward + x", "embedding_forward", "cast",
        "adamw (f32 state)", "adamw (mixed state)", "adamw (bf16 state)"}) {
    INFO(op);
    const OpBenchRow row = row_of(rows, op, DType::kBf16);
    CHECK(row.ms > 0);
    CHECK(row.unit == (std::string(op).find('=') != std::string::npos ? "TFLOP/s" : "GB/s"));
  }
  row_of(rows, "adamw", DType::kF32);
  CHECK(row_of(rows, "y = x W^T", DType::kBf16).yardstick == 0);
}

TEST_CASE("bench ops times another attention of bf16 in rows without a yardstick, beside its own") {
  const auto backend = create_backend("cpu", {.threads = 1}), other = create_backend("cpu", {.threads = 1});
  OpBenchOptions options;
  options.seconds_per_op = 0;
  options.models = {kSmall};
  options.other_attention = other.get();
  options.other_attention_name = "other";
  const auto rows = bench_ops(*backend, options, [](const OpBenchRow&) {});
  for (const char* op : {"attention_forward", "attention_backward"}) {
    const OpBenchRow row = row_of(rows, std::string(op) + ", other", DType::kBf16);
    CHECK(row.ms > 0);
    CHECK(row.yardstick == 0);
    CHECK(row_of(rows, op, DType::kBf16).yardstick > 0);
  }
  CHECK(std::ranges::count_if(rows, [](const auto& row) { return row.op.ends_with(", other"); }) == 2);
}

OpBenchRow row_with(const char* op, OpBound bound, double rate, double yardstick, int n_candidates = 0) {
  OpBenchRow row;
  row.op = op;
  row.shape = "2 x 3";
  row.rate = rate;
  row.yardstick = yardstick;
  row.bound = bound;
  row.n_candidates = n_candidates;
  return row;
}

TEST_CASE("the summary names the lowest ratio of each kind and of all") {
  using enum OpBound;
  CHECK(op_bench_summary({row_with("a", kProduct, 97, 100, 41), row_with("b", kProduct, 99, 100, 64),
                          row_with("c", kMemory, 8, 10), row_with("d", kMemory, 7, 10), row_with("e", kMemory, 1, 0),
                          row_with("f", kArithmetic, 6, 10)}) ==
        std::vector<std::string>{
            "lowest ratio of products: a 2 x 3 f32, 0.97 of the best of 41 to 64 cuBLASLt algorithms",
            "lowest ratio of attention: f 2 x 3 f32, 0.60 of the fastest product",
            "lowest ratio of what memory bounds: d 2 x 3 f32, 0.70 of a copy",
            "furthest from its bound: f 2 x 3 f32, 0.60 of the fastest product"});
  CHECK(op_bench_summary({row_with("a", kProduct, 9, 10)}) ==
        std::vector<std::string>{"lowest ratio of products: a 2 x 3 f32, 0.90 of plain Eigen",
                                 "furthest from its bound: a 2 x 3 f32, 0.90 of plain Eigen"});
  CHECK(op_bench_summary({row_with("a", kProduct, 9, 0)}).empty());
}

TEST_CASE("a row without a yardstick shows dashes") {
  OpBenchRow row{"cast", "2 x 3", DType::kBf16, 0.5, 12.25, "GB/s", 0, OpBound::kMemory, 0};
  CHECK(to_line(row).ends_with("GB/s             -      -"));
  row.yardstick = 24.5;
  CHECK(to_line(row).ends_with("GB/s          24.5   0.50"));
  CHECK(to_line(row).size() == op_bench_header().size());
}

}  // namespace ferry
