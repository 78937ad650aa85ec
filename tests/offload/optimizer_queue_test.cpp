// SPDX-License-Identifier: Apache-2.0
// Versions, order and embedding rows of the optimizer queue.
#include "offload/optimizer_queue.h"

#include <numeric>

#include "catch.h"
#include "offload/tiny_model.h"
#include "optim/embedding_rows.h"

namespace ferry::test {
namespace {

/// Host arrays of a small f32 model, all gradients 1, and a queue over them.
struct QueueFixture {
  explicit QueueFixture(bool tied, std::int64_t piece_elems = 200)
      : config(small_config(tied)),
        table(config, 16),
        pieces(table, piece_elems),
        flat(static_cast<std::size_t>(table.flat_elems())),
        weight(flat, 0.0F),
        m(flat, 0.0F),
        v(flat, 0.0F),
        gradient(flat, 1.0F),
        arrays{.weight = weight.data(), .m = m.data(), .v = v.data(), .gradient = gradient.data()} {
    backend->record(done.get(), stream.get());
  }

  void begin(std::int64_t step) {
    const AdamwOptions options{.beta1 = 0, .beta2 = 0.5, .eps = 1e-8, .weight_decay = 0};
    const AdamwScalars scalars = adamw_scalars(options, 0.01, step + 1, false);
    queue.begin_step(step, {scalars, scalars});
  }

  ModelConfig config;
  ParameterTable table;
  PieceTable pieces;
  std::size_t flat;
  std::vector<float> weight, m, v, gradient;
  ParameterArrays arrays;
  std::unique_ptr<Backend> backend = create_backend("cpu", {.threads = 1});
  std::unique_ptr<Stream> stream = backend->create_stream("test");
  std::unique_ptr<Event> done = backend->create_event();
  ThreadPool pool{1};
  OptimizerQueue queue{*backend, table, pieces, arrays, false, pool};
};

}  // namespace

TEST_CASE("a submitted piece gets its next version, others keep theirs") {
  QueueFixture f(true);
  f.begin(0);
  const int piece = f.pieces.first_of(f.table.layer_segment(1));
  f.queue.submit(piece, f.done.get());
  f.queue.wait_for(piece, 1);
  CHECK(f.queue.is_at(piece, 1));
  CHECK(f.queue.is_at(piece + 1, 0));
  CHECK(f.m[static_cast<std::size_t>(f.pieces.piece(piece).offset)] == 1.0F);
  CHECK(f.m[static_cast<std::size_t>(f.pieces.piece(piece + 1).offset)] == 0.0F);
}

TEST_CASE("padding between parameters is never updated") {
  QueueFixture f(true, 1 << 20);
  f.begin(0);
  const int segment = f.table.layer_segment(0);
  f.queue.submit(f.pieces.first_of(segment), f.done.get());
  f.queue.wait_for(f.pieces.first_of(segment), 1);
  const ParameterInfo& norm = f.table.parameters()[f.table.first_parameter_at(f.table.segment(segment).offset)];
  CHECK(f.m[static_cast<std::size_t>(norm.offset + norm.elems - 1)] == 1.0F);
  CHECK(f.m[static_cast<std::size_t>(norm.offset + norm.elems)] == 0.0F);
}

TEST_CASE("nothing is updated before its event is reached") {
  QueueFixture f(true);
  const auto gate_stream = f.backend->create_stream("gate");
  const auto gate = f.backend->create_event();
  std::vector<float> big(std::size_t{1} << 22);
  f.begin(0);
  const int piece = f.pieces.first_of(f.table.layer_segment(0));
  f.backend->copy(gate_stream.get(), big.data(), big.data() + big.size() / 2, big.size() * 2,
                  CopyDirection::kDeviceToHost);
  f.backend->record(gate.get(), gate_stream.get());
  f.queue.submit(piece, gate.get());
  f.queue.wait_for(piece, 1);
  CHECK(f.backend->query(gate.get()));
}

TEST_CASE("the rows of an untied embedding are summed, used and cleared") {
  QueueFixture f(false);
  std::ranges::fill(f.gradient, 0.0F);
  auto rows = std::make_shared<EmbeddingGradient>();
  rows->ids = {60, 3, 60};
  rows->order.resize(3);
  sort_positions(rows->ids, rows->order);
  std::vector<float> d_x(3 * 24, 0.5F);
  rows->d_x = TensorView(d_x.data(), DType::kF32, {3, 24});
  f.begin(0);
  f.queue.submit_embedding(rows, f.done.get());
  for (int id = 0; id < f.pieces.first_of(f.table.layer_segment(0)); ++id) f.queue.wait_for(id, 1);
  CHECK(f.m[60 * 24] == 1.0F);
  CHECK(f.m[3 * 24 + 23] == 0.5F);
  CHECK(f.m[4 * 24] == 0.0F);
  CHECK(std::accumulate(f.gradient.begin(), f.gradient.end(), 0.0F) == 0.0F);
}

TEST_CASE("the rows of a tied embedding are added to the head's gradient") {
  QueueFixture f(true);
  auto rows = std::make_shared<EmbeddingGradient>();
  rows->ids = {60, 3, 60};
  rows->order.resize(3);
  sort_positions(rows->ids, rows->order);
  std::vector<float> d_x(3 * 24, 0.5F);
  rows->d_x = TensorView(d_x.data(), DType::kF32, {3, 24});
  f.begin(0);
  f.queue.submit_embedding(rows, f.done.get());
  for (int id = 0; id < f.pieces.first_of(f.table.layer_segment(0)); ++id) f.queue.wait_for(id, 1);
  CHECK(f.m[60 * 24] == 2.0F);
  CHECK(f.m[3 * 24 + 23] == 1.5F);
  CHECK(f.m[4 * 24] == 1.0F);
}

TEST_CASE("all pieces over several steps reach the last version") {
  QueueFixture f(false, 64);
  auto rows = std::make_shared<EmbeddingGradient>();
  rows->ids = {1};
  rows->order = {0};
  std::vector<float> d_x(24, 1.0F);
  rows->d_x = TensorView(d_x.data(), DType::kF32, {1, 24});
  for (std::int64_t step = 0; step < 5; ++step) {
    f.begin(step);
    for (int id = f.pieces.n_pieces(); id-- > f.pieces.first_of(f.table.layer_segment(0));)
      f.queue.submit(id, f.done.get());
    f.queue.submit_embedding(rows, f.done.get());
    f.queue.wait_for_all(step + 1);
  }
  CHECK(f.queue.is_at(0, 5));
  CHECK(f.queue.busy_ms(4) > 0);
}

}  // namespace ferry::test
