// SPDX-License-Identifier: Apache-2.0
// Versions, order and embedding rows of the optimizer queue.
#include "offload/optimizer_queue.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "catch.h"
#include "offload/tiny_model.h"
#include "thrown.h"

namespace ferry::test {
namespace {

ArrayLayout host_layout(const ParameterTable& table) {
  ArrayLayout layout;
  layout.homes.assign(table.segments().size(), Home::kHost);
  for (const Segment& segment : table.segments()) {
    layout.gradient.push_back(segment.kind != Segment::Kind::kEmbedding && table.is_trained(segment));
  }
  for (const ParameterInfo& info : table.parameters()) layout.trained.push_back(info.trained);
  return layout;
}

/// Host arrays of a small f32 model, all gradients 1, and a queue over them. AdamW's first moment is the gradient.
struct QueueFixture {
  explicit QueueFixture(bool tied, std::int64_t piece_elems = 200, double grad_clip = 0,
                        std::vector<std::string> freeze = {})
      : config(small_config(tied)),
        table(config, 16, {.decay_embeddings = false, .freeze = std::move(freeze)}),
        pieces(table, piece_elems),
        flat(static_cast<std::size_t>(table.flat_elems())),
        weight(flat, 0.0F),
        m(flat, 0.0F),
        v(flat, 0.0F),
        gradient(flat, 1.0F),
        arrays(table, host_layout(table)),
        options{.adamw = {.beta1 = 0, .beta2 = 0.5, .eps = 1e-8, .weight_decay = 0},
                .grad_clip = grad_clip,
                .timeline = &timeline} {
    arrays.bind(ParameterArray::kWeight, Home::kHost, weight.data());
    arrays.bind(ParameterArray::kFirstMoment, Home::kHost, m.data());
    arrays.bind(ParameterArray::kSecondMoment, Home::kHost, v.data());
    arrays.bind(ParameterArray::kGradient, Home::kHost, gradient.data());
    backend->record(done.get(), stream.get());
  }

  void begin(std::int64_t step, const std::vector<std::int32_t>& ids = {60, 3, 60},
             std::shared_ptr<const BatchRows> next = nullptr) {
    rows = std::make_shared<const BatchRows>(ids);
    d_x.assign(ids.size() * 24, 0.5F);
    queue.begin_step(step, 0.01, rows, std::move(next));
  }
  int first_of_layer(std::int64_t layer) const { return pieces.first_of(table.layer_segment(layer)); }
  /// The gradient of the embedding's rows, the last that a step submits.
  void submit_rows() {
    const TensorView rows_view(d_x.data(), DType::kF32, {static_cast<std::int64_t>(d_x.size()) / 24, 24});
    const TensorView of_head(gradient.data(), DType::kF32, {61, 24});
    queue.submit_rows({.d_x = rows_view, .own = table.tied() ? of_head : TensorView()}, done.get());
  }
  /// Everything that a step submits.
  void submit_all() {
    for (int id = pieces.n_pieces(); id-- > 0;) {
      const bool is_untied_table = !table.tied() && id < first_of_layer(0);
      queue.submit(id, is_untied_table ? nullptr : done.get());
    }
    submit_rows();
  }

  ModelConfig config;
  ParameterTable table;
  PieceTable pieces;
  std::size_t flat;
  std::vector<float> weight, m, v, gradient, d_x;
  ParameterArrays arrays;
  OptimizerQueueOptions options;
  std::shared_ptr<const BatchRows> rows;
  std::unique_ptr<Backend> backend = create_backend("cpu", {.threads = 1});
  std::unique_ptr<Stream> stream = backend->create_stream("test");
  std::unique_ptr<Event> done = backend->create_event();
  ThreadPool pool{1};
  Timeline timeline{*backend, table, pieces};
  OptimizerQueue queue{*backend, table, pieces, arrays, options, pool};
};

}  // namespace

TEST_CASE("a submitted piece gets its next version, others keep theirs") {
  QueueFixture f(true);
  f.begin(0);
  const int piece = f.first_of_layer(1);
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
  const int piece = f.first_of_layer(0);
  f.backend->copy(gate_stream.get(), big.data(), big.data() + big.size() / 2, big.size() * 2,
                  CopyDirection::kDeviceToHost);
  f.backend->record(gate.get(), gate_stream.get());
  f.queue.submit(piece, gate.get());
  f.queue.wait_for(piece, 1);
  CHECK(f.backend->query(gate.get()));
}

TEST_CASE("rows that the batch reads take their summed gradient, the others of an untied embedding none") {
  QueueFixture f(false);
  f.begin(0);
  f.submit_all();
  f.queue.wait_for_all(1);
  CHECK(f.m[60 * 24] == 1.0F);
  CHECK(f.m[3 * 24 + 23] == 0.5F);
  CHECK(f.m[4 * 24] == 0.0F);
}

TEST_CASE("rows of a tied embedding that the batch reads are added to the head's gradient") {
  QueueFixture f(true);
  f.begin(0);
  f.submit_all();
  f.queue.wait_for_all(1);
  CHECK(f.m[60 * 24] == 2.0F);
  CHECK(f.m[3 * 24 + 23] == 1.5F);
  CHECK(f.m[4 * 24] == 1.0F);
}

TEST_CASE("rows that the batch does not read are updated without the rows' gradient") {
  const bool tied = GENERATE(true, false);
  QueueFixture f(tied, 24);  // one row a piece
  f.begin(0);
  f.queue.submit(4, f.done.get());
  f.queue.submit(3, f.done.get());
  f.queue.submit(f.first_of_layer(0), f.done.get());
  f.queue.wait_for(f.first_of_layer(0), 1);
  CHECK(f.v[4 * 24] == (tied ? 0.5F : 0.0F));
  CHECK(f.m[3 * 24] == 0.0F);
  CHECK_FALSE(f.queue.is_at(3, 1));
  f.submit_rows();
  f.queue.wait_for(3, 1);
  CHECK(f.m[3 * 24] == (tied ? 1.5F : 0.5F));
}

TEST_CASE("rows of the next batch are updated first, the rest of the table last") {
  const bool tied = GENERATE(true, false);
  QueueFixture f(tied, 200, 1e6);
  f.timeline.start(0, 1, f.stream.get());
  f.begin(0, {60, 3, 60}, std::make_shared<const BatchRows>(std::vector<std::int32_t>{5, 3}));
  f.submit_all();
  f.queue.wait_for_all(1);
  std::vector<int> ranks;
  for (const TimelineSpan& span : f.timeline.take()) {
    if (span.lane != Lane::kOptimizer) continue;
    const bool of_next = span.name.starts_with("AdamW of the next batch's rows");
    const bool of_table = span.name.find(tied ? "head chunk" : "embedding") != std::string::npos;
    const bool is_late = span.name == "AdamW of the batch's other rows";
    ranks.push_back(span.name == "AdamW of the batch's rows" ? 0 : of_next ? 1 : is_late ? 3 : of_table ? 4 : 2);
  }
  CHECK(std::ranges::is_sorted(ranks));
  CHECK(std::ranges::count(ranks, 1) == f.first_of_layer(0));
  CHECK(std::ranges::count(ranks, 0) == 1);
  CHECK(std::ranges::count(ranks, 3) == 1);
  CHECK(std::ranges::count(ranks, 4) == f.first_of_layer(0));
}

TEST_CASE("where no layer waits, all rows of a piece that the batch does not read are updated at once") {
  const bool tied = GENERATE(true, false);
  QueueFixture f(tied);
  f.timeline.start(0, 1, f.stream.get());
  f.begin(0, {60, 3, 60}, std::make_shared<const BatchRows>(std::vector<std::int32_t>{5, 3}));
  const int n_table_pieces = f.first_of_layer(0);
  for (int id = 0; id < n_table_pieces; ++id) f.queue.submit(id, f.done.get());
  f.submit_rows();
  for (int id = 0; id < n_table_pieces; ++id) f.queue.wait_for(id, 1);
  int n_whole = 0;
  for (const TimelineSpan& span : f.timeline.take()) {
    CHECK_FALSE(span.name.starts_with("AdamW of the next batch's rows"));
    n_whole += span.name.find(tied ? "AdamW head chunk" : "AdamW embedding") != std::string::npos ? 1 : 0;
  }
  CHECK(n_whole == n_table_pieces);
  for (const std::int64_t row : {2, 5}) CHECK(f.m[static_cast<std::size_t>(row * 24)] == (tied ? 1.0F : 0.0F));
  CHECK(f.v[5 * 24] == (tied ? 0.5F : 0.0F));
}

TEST_CASE("rows that were named as the next ones, and others, are up to date after the wait for them") {
  const bool tied = GENERATE(true, false);
  const double grad_clip = GENERATE(0.0, 1e6);
  QueueFixture f(tied, 24, grad_clip);
  const auto next = std::make_shared<const BatchRows>(std::vector<std::int32_t>{5, 3});
  f.begin(0, {60, 3, 60}, next);
  f.submit_all();
  SECTION("named") {
    f.queue.begin_step(1, 0.01, next, nullptr);
    f.queue.wait_for_rows(*next, 1);
    f.queue.release_rows();
  }
  SECTION("others") {
    const auto other = std::make_shared<const BatchRows>(std::vector<std::int32_t>{3, 5});
    f.queue.begin_step(1, 0.01, other, nullptr);
    f.queue.wait_for_rows(*other, 1);
    CHECK(f.queue.is_at(5, 1));
  }
  CHECK(f.m[5 * 24] == (tied ? 1.0F : 0.0F));
  CHECK(f.m[3 * 24] == (tied ? 1.5F : 0.5F));
  CHECK(f.v[5 * 24] == (tied ? 0.5F : 0.0F));
}

TEST_CASE("no update begins while rows that were waited for are read") {
  QueueFixture f(true);
  const auto next = std::make_shared<const BatchRows>(std::vector<std::int32_t>{5, 3});
  f.begin(0, {60, 3, 60}, next);
  f.submit_all();
  f.queue.wait_for_all(1);
  f.queue.begin_step(1, 0.01, next, nullptr);
  f.queue.wait_for_rows(*next, 1);
  const int piece = f.first_of_layer(0);
  f.queue.submit(piece, f.done.get());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(f.queue.is_at(piece, 1));
  f.queue.release_rows();
  f.queue.wait_for(piece, 2);
}

TEST_CASE("a row of both batches is updated once") {
  QueueFixture f(true, 200);
  f.begin(0, {60, 3, 60}, std::make_shared<const BatchRows>(std::vector<std::int32_t>{60, 2}));
  f.submit_all();
  f.queue.wait_for_all(1);
  CHECK(f.m[60 * 24] == 2.0F);
  CHECK(f.v[60 * 24] == 0.5F * 2.0F * 2.0F);
  CHECK(f.v[2 * 24] == 0.5F);
  CHECK(f.v[4 * 24] == 0.5F);
}

TEST_CASE("all pieces over several steps reach the last version") {
  QueueFixture f(false, 64);
  for (std::int64_t step = 0; step < 5; ++step) {
    f.begin(step);
    f.submit_all();
    f.queue.wait_for_all(step + 1);
  }
  CHECK(f.queue.is_at(0, 5));
  CHECK(f.queue.busy_ms(4) > 0);
  CHECK(f.queue.applied_steps() == 5);
}

TEST_CASE("the norm of a step counts the device's sums and the batch's rows") {
  QueueFixture f(false);
  f.begin(0);
  const std::vector<float> sums = {2.0F, 3.0F};
  f.queue.submit_norms("a", sums, f.done.get());
  f.submit_rows();
  // Row 60 has gradients 1, row 3 has 0.5.
  CHECK(f.queue.verdict(0).grad_norm == std::sqrt(5.0 + 24 * 1.0 + 24 * 0.25));
}

TEST_CASE("the norm and the weights have the same bits whatever the next batch reads") {
  const bool tied = GENERATE(true, false);
  const double grad_clip = GENERATE(0.0, 0.5);
  const auto run = [&](std::shared_ptr<const BatchRows> next) {
    QueueFixture f(tied, 200, grad_clip);
    f.begin(0, {60, 3, 7, 60, 11, 3, 60, 12}, std::move(next));
    for (std::size_t i = 0; i < f.d_x.size(); ++i) f.d_x[i] = 1.0F / static_cast<float>(i + 3);
    f.submit_all();
    f.queue.wait_for_all(1);
    return std::pair(f.queue.verdict(0).grad_norm, f.weight);
  };
  const auto rows = [](std::vector<std::int32_t> ids) { return std::make_shared<const BatchRows>(ids); };
  const auto want = run(nullptr);
  CHECK(run(rows({60, 3, 7, 11, 12})) == want);
  CHECK(run(rows({12, 5, 3})) == want);
  CHECK(run(rows({1, 2})) == want);
}

TEST_CASE("clipping holds all updates until the norm is known, then scales them") {
  QueueFixture f(false, 200, 0.25);
  f.begin(0);
  for (int id = f.pieces.n_pieces(); id-- > 0;) f.queue.submit(id, f.done.get());
  const float sum = 100;
  f.queue.submit_norms("a", std::span(&sum, 1), f.done.get());
  CHECK_FALSE(f.queue.is_at(f.first_of_layer(0), 1));
  f.submit_rows();
  f.queue.wait_for_all(1);
  const StepVerdict verdict = f.queue.verdict(0);
  CHECK(verdict.grad_norm == std::sqrt(130.0));
  CHECK(verdict.coefficient == 0.25 / (std::sqrt(130.0) + 1e-6));
  const auto scale = static_cast<float>(verdict.coefficient);
  CHECK(f.m[static_cast<std::size_t>(f.pieces.piece(f.first_of_layer(0)).offset)] == scale);
  CHECK(f.m[60 * 24] == scale);
  CHECK(f.m[3 * 24] == 0.5F * scale);
}

TEST_CASE("a norm below the limit leaves the gradients as they are") {
  QueueFixture f(false, 200, 1e6);
  f.begin(0);
  f.submit_all();
  f.queue.wait_for_all(1);
  CHECK(f.queue.verdict(0).coefficient == 1);
  CHECK(f.m[60 * 24] == 1.0F);
}

TEST_CASE("with clipping a step that is not finite is skipped, and AdamW does not count it") {
  QueueFixture f(GENERATE(true, false), 200, 1.0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  f.begin(0);
  f.queue.submit_norms("a", std::span(&nan, 1), f.done.get());
  f.submit_all();
  f.queue.wait_for_all(1);
  CHECK_FALSE(f.queue.verdict(0).applied);
  CHECK(f.queue.applied_steps() == 0);
  CHECK(std::ranges::all_of(f.m, [](float value) { return value == 0; }));
  f.begin(1);
  f.submit_all();
  f.queue.wait_for_all(2);
  CHECK(f.queue.verdict(1).applied);
  CHECK(f.queue.applied_steps() == 1);
  CHECK(f.m[60 * 24] != 0);
}

TEST_CASE("without clipping what is not finite stops the queue before what follows, with its name") {
  QueueFixture f(false);
  const float infinite = std::numeric_limits<float>::infinity();
  f.begin(0);
  const int piece = f.first_of_layer(1);
  SECTION("a gradient") { f.queue.submit_norms("the gradient of layer 1", std::span(&infinite, 1), f.done.get()); }
  SECTION("a loss") { f.queue.submit_loss(std::span(&infinite, 1), f.done.get()); }
  f.queue.submit(piece, f.done.get());
  const std::string message = thrown([&] { f.queue.wait_for(piece, 1); });
  CHECK(message.find("of step 1 is inf: training diverged at lr 0.01") != std::string::npos);
  CHECK(f.m[static_cast<std::size_t>(f.pieces.piece(piece).offset)] == 0.0F);
}

TEST_CASE("a row's gradient that is not finite stops the queue, with its name") {
  QueueFixture f(false);
  const auto next = GENERATE(std::vector<std::int32_t>{}, std::vector<std::int32_t>{60}, std::vector<std::int32_t>{3});
  f.begin(0, {60, 3, 60}, next.empty() ? nullptr : std::make_shared<const BatchRows>(next));
  f.d_x[0] = std::numeric_limits<float>::quiet_NaN();
  f.submit_rows();
  const std::string message = thrown([&] { f.queue.verdict(0); });
  CHECK(message.find("the gradient of model.embed_tokens.weight of step 1") != std::string::npos);
}

TEST_CASE("frozen pieces have every version") {
  QueueFixture f(true, 200, 0, {"model.layers.1.*"});
  CHECK(f.queue.is_at(f.first_of_layer(1), 17));
  f.queue.wait_for(f.first_of_layer(1), 17);
  CHECK_FALSE(f.queue.is_at(f.first_of_layer(0), 17));
}

}  // namespace ferry::test
