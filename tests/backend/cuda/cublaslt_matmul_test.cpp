// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cublaslt_matmul.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/cublaslt_plan.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_array.h"
#include "catch.h"
#include "core/error.h"
#include "core/rng.h"
#include "gpu_or_skip.h"
#include "temp_file.h"

using namespace ferry;
using namespace ferry::cuda;
using ferry::test::DeviceArray;

namespace {

struct Gpu {
  Gpu() {
    gpu_or_skip();
    backend = create_cuda_backend(CudaOptions{});
    stream = backend->create_stream("test");
    scratch = backend->allocate_device(CublasLtMatmul::kWorkspaceBytes, "workspace");
  }
  Scratch workspace() const { return {scratch.data(), scratch.size_bytes()}; }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  Buffer scratch;
};

float to_type(float value, float) { return value; }
Bf16 to_type(float value, Bf16) { return to_bf16(value); }

/// A matrix on the device: rows with gaps, which hold NaN.
template <class T>
class Matrix {
 public:
  Matrix(const Gpu& gpu, std::int64_t n_rows, std::int64_t n_columns, std::int64_t gap, std::size_t skew,
         const char* name)
      : n_rows_(n_rows),
        n_columns_(n_columns),
        stride_(n_columns + gap),
        values_(fill(name)),
        array_(*gpu.backend, *gpu.stream, values_, skew) {}

  TensorView view() const {
    TensorView view(array_.data(), DTypeOf<T>::kValue, {n_rows_, n_columns_});
    view.stride[0] = stride_;
    return view;
  }
  double at(std::int64_t row, std::int64_t column) const {
    return to_f32(values_[static_cast<std::size_t>(row * stride_ + column)]);
  }
  std::vector<T> read() const { return array_.read(); }
  std::int64_t stride() const { return stride_; }

 private:
  std::vector<T> fill(const char* name) const {
    std::vector<T> values(static_cast<std::size_t>(n_rows_ * stride_), to_type(NAN, T{}));
    const CounterRng rng(11, name);
    for (std::int64_t r = 0; r < n_rows_; ++r) {
      for (std::int64_t c = 0; c < n_columns_; ++c) {
        const auto i = static_cast<std::size_t>(r * stride_ + c);
        values[i] = to_type(static_cast<float>(rng.normal(i)), T{});
      }
    }
    return values;
  }

  std::int64_t n_rows_;
  std::int64_t n_columns_;
  std::int64_t stride_;
  std::vector<T> values_;
  DeviceArray<T> array_;
};

struct Case {
  std::int64_t m, n, k;
  std::int64_t gap;
  std::size_t skew;
  bool transpose_a, transpose_b;
  Addend addend;
};

std::string describe(const Case& c) {
  return fmt::format("m{} n{} k{} gap{} skew{} {}{} addend{}", c.m, c.n, c.k, c.gap, c.skew, c.transpose_a,
                     c.transpose_b, static_cast<int>(c.addend));
}

/// "" when the backend's product agrees with one in f64 and leaves the gaps of d alone.
template <class In, class Out>
std::string fault(const Gpu& gpu, const Case& c) {
  const auto rows = [](bool transposed, std::int64_t r, std::int64_t s) { return transposed ? s : r; };
  const Matrix<In> a(gpu, rows(c.transpose_a, c.m, c.k), rows(c.transpose_a, c.k, c.m), c.gap, c.skew, "a");
  const Matrix<In> b(gpu, rows(c.transpose_b, c.k, c.n), rows(c.transpose_b, c.n, c.k), c.gap, c.skew, "b");
  const Matrix<Out> other(gpu, c.m, c.n, 2 * c.gap, c.skew, "c");
  const Matrix<Out> d(gpu, c.m, c.n, c.gap, c.skew, "d");
  Matmul op{
      .a = a.view(), .b = b.view(), .c = {}, .d = d.view(), .transpose_a = c.transpose_a, .transpose_b = c.transpose_b};
  if (c.addend != Addend::kNone) op.c = c.addend == Addend::kInPlace ? d.view() : other.view();
  gpu.backend->enqueue(gpu.stream.get(), op, gpu.workspace());
  const std::vector<Out> got = d.read();

  const double rounding = DTypeOf<Out>::kValue == DType::kBf16 ? 0x1p-8 : 0x1p-22;
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < d.stride(); ++j) {
      const double value = to_f32(got[static_cast<std::size_t>(i * d.stride() + j)]);
      if (j >= c.n) {
        if (!std::isnan(value)) return fmt::format("{}: the gap of row {} was written", describe(c), i);
        continue;
      }
      double want = 0, size = 0;
      for (std::int64_t p = 0; p < c.k; ++p) {
        const double term = (c.transpose_a ? a.at(p, i) : a.at(i, p)) * (c.transpose_b ? b.at(j, p) : b.at(p, j));
        want += term;
        size += std::abs(term);
      }
      if (c.addend == Addend::kSeparate) want += other.at(i, j);
      if (c.addend == Addend::kInPlace) want += d.at(i, j);
      // The sum in f32, in any order, then one rounding: several would be further off.
      if (!(std::abs(value - want) <= rounding * std::abs(want) + 0x1p-22 * (size + std::abs(want)))) {
        return fmt::format("{}: d[{},{}] is {}, expected {}", describe(c), i, j, value, want);
      }
    }
  }
  return "";
}

std::vector<Case> cases(bool transpose_a, bool transpose_b) {
  std::vector<Case> all;
  constexpr std::int64_t kShapes[][3] = {{1, 1, 1},      {17, 33, 65}, {64, 128, 96},
                                         {130, 257, 67}, {1, 64, 512}, {65, 1, 40}};
  for (const auto& [m, n, k] : kShapes) {
    for (const std::int64_t gap : {0, 3, 8}) {
      for (const std::size_t skew : {0, 1}) {
        for (const Addend addend : {Addend::kNone, Addend::kSeparate, Addend::kInPlace}) {
          all.push_back({m, n, k, gap, skew, transpose_a, transpose_b, addend});
        }
      }
    }
  }
  return all;
}

/// A product that is timed.
template <class Out = Bf16>
struct LargeProduct {
  explicit LargeProduct(const Gpu& gpu)
      : a(gpu, kExtent, kExtent, 0, 0, "a"), b(gpu, kExtent, kExtent, 0, 0, "b"), d(gpu, kExtent, kExtent, 0, 0, "d") {}
  Matmul op(bool in_place = false) const {
    return {.a = a.view(), .b = b.view(), .c = in_place ? d.view() : TensorView(), .d = d.view()};
  }
  /// Sum of row 5 and column 7 in f64, what d[5,7] should be without an addend.
  double element() const {
    double sum = 0;
    for (std::int64_t p = 0; p < kExtent; ++p) sum += a.at(5, p) * b.at(p, 7);
    return sum;
  }
  double got() const { return to_f32(d.read()[5 * kExtent + 7]); }

  static constexpr std::int64_t kExtent = 1024;
  static_assert(2.0 * kExtent * kExtent * kExtent >= CublasLtMatmul::kTimedFlop);
  Matrix<Bf16> a;
  Matrix<Bf16> b;
  Matrix<Out> d;
};
using Large = LargeProduct<>;

std::vector<std::uint16_t> bits(const std::vector<Bf16>& values) {
  std::vector<std::uint16_t> result;
  for (const Bf16 value : values) result.push_back(value.bits);
  return result;
}

/// A CUDA stream of the test's own, since the class takes no other.
struct RawStream {
  RawStream() { FERRY_CUDA_CHECK(cudaStreamCreateWithFlags(owner.receive(), cudaStreamNonBlocking)); }
  void run(CublasLtMatmul& matmul, const Matmul& op, const Gpu& gpu) const {
    matmul.enqueue(op, gpu.workspace(), owner.get());
    FERRY_CUDA_CHECK(cudaStreamSynchronize(owner.get()));
  }
  StreamOwner owner;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

TEST_CASE("products of every transpose, alignment, stride and addend agree with f64", "[gpu]") {
  const Gpu gpu;
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const Case& c : cases(transpose_a, transpose_b)) {
        CHECK(fault<float, float>(gpu, c) == "");
        CHECK(fault<Bf16, Bf16>(gpu, c) == "");
        CHECK(fault<Bf16, float>(gpu, c) == "");
      }
    }
  }
}

TEST_CASE("f32 products are not TF32", "[gpu]") {
  const Gpu gpu;
  const DeviceArray<float> a(*gpu.backend, *gpu.stream, std::vector<float>(256 * 256, 1.0F + 0x1p-20F));
  const DeviceArray<float> d(*gpu.backend, *gpu.stream, std::vector<float>(256 * 256));
  std::vector<float> identity(256 * 256);
  for (std::size_t i = 0; i < 256; ++i) identity[i * 257] = 1;
  const DeviceArray<float> b(*gpu.backend, *gpu.stream, identity);
  const auto view = [](const DeviceArray<float>& x) { return TensorView(x.data(), DType::kF32, {256, 256}); };
  gpu.backend->enqueue(gpu.stream.get(), Matmul{.a = view(a), .b = view(b), .c = {}, .d = view(d)}, gpu.workspace());
  CHECK(d.read() == std::vector<float>(256 * 256, 1.0F + 0x1p-20F));
}

TEST_CASE("a large product is timed once, then found in memory and in the file, with the same bits", "[gpu]") {
  const Gpu gpu;
  const RawStream stream;
  const Large large(gpu);
  const TempFolder folder;
  const auto file = folder.path() / "choices.txt";
  CublasLtMatmul first("test", file);
  stream.run(first, large.op(), gpu);
  CHECK(first.n_timed() == 1);
  const auto expected = bits(large.d.read());
  stream.run(first, large.op(), gpu);
  CHECK(first.n_timed() == 1);
  CHECK(bits(large.d.read()) == expected);
  CHECK(std::abs(large.got() - large.element()) <= 0x1p-8 * std::abs(large.element()) + 1e-3);

  CublasLtMatmul second("test", file);
  stream.run(second, large.op(), gpu);
  CHECK(second.n_timed() == 0);
  CHECK(bits(large.d.read()) == expected);

  CublasLtMatmul other_device("another", file);
  stream.run(other_device, large.op(), gpu);
  CHECK(other_device.n_timed() == 1);
}

TEST_CASE("the algorithms of a large product are many, come in one order, and are found by their names", "[gpu]") {
  const Gpu gpu;
  const Large large(gpu);
  Owner<cublasLtHandle_t, cublasLtDestroy> handle;
  FERRY_CUBLAS_CHECK(cublasLtCreate(handle.receive()));
  const ProductDescriptors product{Product(large.op())};
  const auto names = [&](std::size_t max_count) {
    std::vector<std::string> result;
    for (const Candidate& candidate : product.candidates(handle.get(), CublasLtMatmul::kWorkspaceBytes, max_count)) {
      result.push_back(candidate.name);
    }
    return result;
  };
  const std::vector<std::string> all = names(128);
  CHECK(all.size() >= CublasLtMatmul::kCandidates);
  CHECK(std::set<std::string>(all.begin(), all.end()).size() == all.size());
  CHECK(names(128) == all);
  const std::size_t n_first = std::min(all.size(), CublasLtMatmul::kCandidates);
  CHECK(names(n_first) == std::vector<std::string>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n_first)));
  for (const std::string& name : all) {
    INFO(name);
    const auto again = product.named(handle.get(), CublasLtMatmul::kWorkspaceBytes, name);
    REQUIRE(again);
    CHECK(again->name == name);
  }
  for (const char* const name : {"", "algo99999 tile0", "algo66"}) {
    CHECK(!product.named(handle.get(), CublasLtMatmul::kWorkspaceBytes, name));
  }
  CHECK(!product.named(handle.get(), CublasLtMatmul::kWorkspaceBytes, all.front() + " "));
}

TEST_CASE("timing a product that adds in place adds once", "[gpu]") {
  const Gpu gpu;
  const RawStream stream;
  const LargeProduct<float> large(gpu);
  CublasLtMatmul matmul("test", "");
  stream.run(matmul, large.op(true), gpu);
  CHECK(matmul.n_timed() == 1);
  const double want = large.element() + large.d.at(5, 7);
  CHECK(std::abs(large.got() - want) <= 0x1p-8 * std::abs(want) + 1e-3);
}

TEST_CASE("a broken file, or a choice that cannot run, is timed again and rewritten", "[gpu]") {
  const Gpu gpu;
  const RawStream stream;
  const Large large(gpu);
  const TempFolder folder;
  const auto good = folder.path() / "good.txt";
  CublasLtMatmul first("test", good);
  stream.run(first, large.op(), gpu);
  const std::string text = read_file(good);
  const std::size_t choice = text.rfind('\t') + 1;
  for (const std::string& broken : {std::string("not ours"), text.substr(0, choice) + "algo99999 tile0\n"}) {
    const auto file = folder.write("choices.txt", broken);
    CublasLtMatmul again("test", file);
    stream.run(again, large.op(), gpu);
    CHECK(again.n_timed() == 1);
    const std::string rewritten = read_file(file);
    CHECK(rewritten.substr(0, choice) == text.substr(0, choice));
    CHECK(rewritten.find("algo99999") == std::string::npos);
  }
}

TEST_CASE("the bits of a product do not depend on where its arrays lie", "[gpu]") {
  const Gpu gpu;
  const RawStream stream;
  const Large near(gpu);
  const Matrix<Bf16> a(gpu, Large::kExtent, Large::kExtent, 0, 8, "a"),
      b(gpu, Large::kExtent, Large::kExtent, 0, 24, "b"), d(gpu, Large::kExtent, Large::kExtent, 0, 40, "d");
  CublasLtMatmul matmul("test", "");
  stream.run(matmul, near.op(), gpu);
  stream.run(matmul, {.a = a.view(), .b = b.view(), .c = {}, .d = d.view()}, gpu);
  CHECK(matmul.n_timed() == 1);
  CHECK(bits(near.d.read()) == bits(d.read()));
}
