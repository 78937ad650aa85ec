// SPDX-License-Identifier: Apache-2.0
// AdamW of a batch's rows that are wider than one cut, for any number of threads and any order of the rows.
#include "offload/host_updates.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "catch.h"
#include "offload/tiny_model.h"
#include "optim/embedding_rows.h"

namespace ferry::test {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr std::int64_t kWidth = kRowColumns + 5;
constexpr std::int64_t kVocab = 12;
const Ids kIds = {7, 2, 11, 7, 2, 7};
const AdamwScalars kScalars = adamw_scalars({.beta1 = 0}, 0.01, 1, false);  // stochastic rounding

ModelConfig wide_config() {
  ModelConfig config = small_config(true);
  config.vocab_size = kVocab;
  config.hidden_size = kWidth;
  return config;
}

ArrayLayout bf16_layout(const ParameterTable& table) {
  return {.dtype = DType::kBf16,
          .state = OptimizerState::kBf16,
          .homes = std::vector<Home>(table.segments().size(), Home::kHost),
          .trained = std::vector<bool>(table.parameters().size(), true),
          .gradient = std::vector<bool>(table.segments().size(), false)};
}

std::vector<Bf16> fractions(std::int64_t n, std::int64_t step) {
  std::vector<Bf16> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(to_bf16(1.0F / static_cast<float>(i * step % 97 + 3)));
  return values;
}

/// Host arrays of a model whose rows have two cuts. AdamW's first moment is the gradient.
struct RowsFixture {
  explicit RowsFixture(int n_threads) : pool(n_threads) {
    arrays.bind(ParameterArray::kWeight, Home::kHost, weight.data());
    arrays.bind(ParameterArray::kFirstMoment, Home::kHost, m.data());
    arrays.bind(ParameterArray::kSecondMoment, Home::kHost, v.data());
  }

  /// Updates the batch's rows: those that `next` reads too, then the rest. Returns the sum of all squares.
  double update(bool tied, const Ids& next) {
    const StepScalars scalars{.decayed = kScalars, .plain = kScalars};
    const RowGradients gradients{
        .d_x = TensorView(d_x.data(), DType::kBf16, {static_cast<std::int64_t>(kIds.size()), kWidth}),
        .own = tied ? TensorView(own.data(), DType::kBf16, {kVocab, kWidth}) : TensorView()};
    const BatchRows rows(kIds), then(next);
    const RowSplit split = split_rows(rows, &then);
    std::vector<double> squares;
    for (const Ids& which : {split.both, split.rest}) updates.update_rows(rows, gradients, which, &scalars, squares);
    return std::accumulate(squares.begin(), squares.end(), 0.0);
  }
  /// The contract, written down plainly.
  Bf16 gradient(bool tied, std::int32_t id, std::int64_t column) const {
    const auto at = [&](std::int64_t row) { return static_cast<std::size_t>(row * kWidth + column); };
    float sum = 0;
    for (std::size_t i = 0; i < kIds.size(); ++i) {
      if (kIds[i] == id) sum += to_f32(d_x[at(static_cast<std::int64_t>(i))]);
    }
    return to_bf16((tied ? to_f32(own[at(id)]) : 0.0F) + sum);
  }

  const ModelConfig config = wide_config();
  const ParameterTable table{config, 4};
  std::vector<Bf16> weight = std::vector<Bf16>(static_cast<std::size_t>(table.flat_elems())), m = weight, v = weight;
  std::vector<Bf16> d_x = fractions(static_cast<std::int64_t>(kIds.size()) * kWidth, 5);
  std::vector<Bf16> own = fractions(kVocab * kWidth, 7);
  ParameterArrays arrays{table, bf16_layout(table)};
  std::unique_ptr<Backend> backend = create_backend("cpu", {.threads = 1});
  ThreadPool pool;
  HostUpdates updates{*backend, table, arrays, pool};
};

bool same_row(const std::vector<Bf16>& table, std::int32_t id, const std::vector<Bf16>& row) {
  return std::memcmp(table.data() + id * kWidth, row.data(), row.size() * sizeof(Bf16)) == 0;
}

}  // namespace

TEST_CASE("a batch's rows are updated with their sums, no other row is") {
  const bool tied = GENERATE(true, false);
  RowsFixture f(2);
  const double squares = f.update(tied, {2, 3});
  double want_squares = 0;
  for (std::int32_t id = 0; id < kVocab; ++id) {
    INFO("row " << id);
    std::vector<Bf16> weight(kWidth), m = weight, v = weight, gradient = weight;
    if (id == 2 || id == 7 || id == 11) {
      for (std::int64_t c = 0; c < kWidth; ++c) gradient[static_cast<std::size_t>(c)] = f.gradient(tied, id, c);
      adamw_update({.dtype = DType::kBf16,
                    .state = OptimizerState::kBf16,
                    .weight = weight.data(),
                    .m = m.data(),
                    .v = v.data(),
                    .gradient = gradient.data(),
                    .n = kWidth,
                    .element = id * kWidth},
                   kScalars, simd_level());
    }
    CHECK(same_row(f.weight, id, weight));
    CHECK(same_row(f.m, id, gradient));
    CHECK(same_row(f.v, id, v));
    for (const Bf16 value : gradient) want_squares += std::pow(static_cast<double>(to_f32(value)), 2);
  }
  CHECK(squares == Approx(want_squares).epsilon(1e-12));
}

TEST_CASE("neither threads nor the next batch change a bit of a batch's rows or of their squares") {
  const auto run = [](int n_threads, const Ids& next) {
    RowsFixture f(n_threads);
    const double squares = f.update(true, next);
    std::vector<std::uint16_t> bits;
    for (const auto* values : {&f.weight, &f.m, &f.v}) {
      for (const Bf16 value : *values) bits.push_back(value.bits);
    }
    return std::pair(squares, bits);
  };
  const auto want = run(1, kIds);
  CHECK((run(3, kIds) == want));
  CHECK((run(1, {11, 4}) == want));
  CHECK((run(2, {0}) == want));
}

TEST_CASE("rows of two batches are told apart") {
  const BatchRows now(Ids{7, 2, 11, 7}), then(Ids{11, 12, 2, 0});
  const RowSplit split = split_rows(now, &then);
  CHECK(split.both == Ids{0, 2});
  CHECK(split.rest == Ids{1});
  CHECK(split.early == Ids{0, 12});
  CHECK(split.either == Ids{0, 2, 7, 11, 12});
  CHECK(split_rows(now, nullptr).both == Ids{0, 1, 2});
  CHECK(split_rows(now, nullptr).rest.empty());
}

}  // namespace ferry::test
