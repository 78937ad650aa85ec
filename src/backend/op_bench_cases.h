// SPDX-License-Identifier: Apache-2.0
// The ops that `ferry bench ops` times, on tensors of random values; private to op_bench.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "backend/op_bench.h"
#include "backend/random_fill.h"

namespace ferry {

/// Device memory of the cases at hand.
class BenchTensors {
 public:
  BenchTensors(Backend& backend, StreamRef stream, DType dtype);

  DType dtype() const { return dtype_; }
  /// Random values, of `dtype` for the first.
  TensorView random(std::initializer_list<std::int64_t> shape) { return random(dtype_, shape); }
  TensorView random(DType dtype, std::initializer_list<std::int64_t> shape);
  TensorView zeros(DType dtype, std::initializer_list<std::int64_t> shape);
  /// Integers from 0 to limit - 1.
  TensorView ids(std::int64_t n, std::int64_t limit);
  void free_all() { buffers_.clear(); }

 private:
  TensorView allocate(DType dtype, std::initializer_list<std::int64_t> shape);

  Backend& backend_;
  StreamRef stream_;
  const DType dtype_;
  RandomFill values_;
  RandomFill f32_values_;
  std::vector<Buffer> buffers_;
};

struct BenchCase {
  std::string name;
  std::string shape;
  Op op;
};

/// Builders of cases that share tensors, which may be freed before the next builder is called.
using BenchGroup = std::function<std::vector<BenchCase>(BenchTensors&)>;
std::vector<BenchGroup> bench_groups(const OpBenchModel& model, bool device);

}  // namespace ferry
