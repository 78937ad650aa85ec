// SPDX-License-Identifier: Apache-2.0
// Planning and allocating everything that the engine will ever use.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "offload/engine_impl.h"

namespace ferry {
namespace {

std::int64_t piece_elems(const EngineOptions& options) {
  return std::max<std::int64_t>(1, options.piece_bytes / static_cast<std::int64_t>(size_of(options.dtype)));
}

int threads_or_all(int threads) { return threads > 0 ? threads : available_threads(); }

}  // namespace

std::int64_t choose_vocab_chunk(const ModelConfig& config, const EngineOptions& options) {
  if (options.vocab_chunk > 0) return std::min(options.vocab_chunk, config.vocab_size);
  const std::int64_t most = 3 * config.intermediate_size;
  const std::int64_t n_chunks = (config.vocab_size + most - 1) / most;
  return (config.vocab_size + n_chunks - 1) / n_chunks;
}

const ModelConfig& checked_model(const ModelConfig& config, const EngineOptions& options) {
  config.validate();
  FERRY_CHECK(options.batch_size >= 1, kConfig, "batch_size is {}: expected 1 or more", options.batch_size);
  FERRY_CHECK(options.seq_len >= 1, kConfig, "seq_len is {}: expected 1 or more", options.seq_len);
  FERRY_CHECK(options.weight_slots >= 2, kConfig, "weight_slots is {}: expected 2 or more", options.weight_slots);
  FERRY_CHECK(options.grad_slots >= 2, kConfig, "grad_slots is {}: expected 2 or more", options.grad_slots);
  FERRY_CHECK(
      options.seq_len <= config.max_position_embeddings, kConfig,
      "seq_len is {}, the model has max_position_embeddings {}: lower seq_len, or raise it in the model's config",
      options.seq_len, config.max_position_embeddings);
  return config;
}

Engine::Impl::Impl(Backend& backend, const ModelConfig& config, const EngineOptions& options)
    : backend_(backend),
      config_(checked_model(config, options)),
      options_(options),
      parameters_(config_, choose_vocab_chunk(config_, options_)),
      pieces_(parameters_, piece_elems(options_)),
      buffers_(plan_.memory, backend, config_, options_, parameters_.segment(parameters_.head_segment(0)).n_rows),
      streams_(backend),
      pool_(threads_or_all(options.threads)) {
  arrays_.dtype = options_.dtype;
  arrays_.state = options_.optimizer_state;
  plan_parameters();
  plan_.memory.pack();
  arena_ = backend_.allocate_device(plan_.memory.arena_bytes(), "the device arena");
  buffers_.bind(arena_.data());
  allocate_staging();
  if (resident()) {
    bind_device_arrays();
  } else {
    allocate_host_arrays();
  }
  create_slots();
  upload_rope_table();
}

Engine::Impl::~Impl() {
  try {
    finish();
  } catch (const std::exception&) {
    // What failed has been, or would have been, thrown to the caller by the call before.
  }
}

/// Resident parameters and state, or the slots that streamed ones pass through.
void Engine::Impl::plan_parameters() {
  const auto elem_bytes = size_of(options_.dtype);
  const auto flat = static_cast<std::size_t>(parameters_.flat_elems());
  const auto moment = size_of(arrays_.moment_dtype());
  const auto slot_bytes = static_cast<std::size_t>(parameters_.max_streamed_elems()) * elem_bytes;
  const auto norm_bytes = static_cast<std::size_t>(config_.hidden_size) * elem_bytes;
  const auto all = PhaseSet::all();
  MemoryPlan& memory = plan_.memory;
  if (resident()) {
    plan_.weight = memory.add("weights", flat * elem_bytes, all);
  } else {
    for (int i = 0; i < options_.weight_slots; ++i)
      plan_.weight_slots.push_back(memory.add("weight slots", slot_bytes, all));
    plan_.norm_weight_slot = memory.add("weight slots", norm_bytes, all);
  }
  if (!options_.training) return;
  const int n_grad_slots = resident() ? 1 : options_.grad_slots;
  for (int i = 0; i < n_grad_slots; ++i) plan_.grad_slots.push_back(memory.add("gradient slots", slot_bytes, all));
  plan_.norm_grad_slot = memory.add("gradient slots", norm_bytes, all);
  if (!resident()) return;
  plan_.weight_low = memory.add("optimizer state", arrays_.split_master() ? flat * 2 : 0, all);
  plan_.m = memory.add("optimizer state", flat * moment, all);
  plan_.v = memory.add("optimizer state", flat * moment, all);
  const auto table = static_cast<std::size_t>(config_.vocab_size * config_.hidden_size);
  plan_.embedding_gradient = memory.add("embedding gradient", table * elem_bytes, all);
}

void* Engine::Impl::allocate_host(std::size_t size_bytes, const std::string& purpose) {
  host_buffers_.push_back(backend_.allocate_host(size_bytes, purpose));
  host_lines_.push_back({purpose, host_buffers_.back().size_bytes()});
  auto* data = static_cast<std::byte*>(host_buffers_.back().data());
  constexpr std::size_t kCut = std::size_t{8} << 20;  // pages are first touched by all threads
  pool_.parallel_for(static_cast<std::int64_t>((size_bytes + kCut - 1) / kCut), [&](std::int64_t i) {
    const std::size_t begin = static_cast<std::size_t>(i) * kCut;
    std::memset(data + begin, 0, std::min(kCut, size_bytes - begin));
  });
  return data;
}

void Engine::Impl::allocate_host_arrays() {
  const auto flat = static_cast<std::size_t>(parameters_.flat_elems());
  arrays_.weight = allocate_host(flat * size_of(arrays_.dtype), "weights");
  if (!options_.training) return;
  if (arrays_.split_master()) arrays_.weight_low = allocate_host(flat * 2, "low halves of the f32 masters");
  const std::size_t moment_bytes = flat * size_of(arrays_.moment_dtype());
  arrays_.m = allocate_host(moment_bytes, "first moments");
  arrays_.v = allocate_host(moment_bytes, "second moments");
  arrays_.gradient = allocate_host(flat * size_of(arrays_.dtype), "gradients");
}

void* Engine::Impl::at(MemoryPlan::Id id) const {
  return static_cast<std::byte*>(arena_.data()) + plan_.memory.offset(id);
}

void Engine::Impl::bind_device_arrays() {
  arrays_.weight = at(plan_.weight);
  if (!options_.training) return;
  if (arrays_.split_master()) arrays_.weight_low = at(plan_.weight_low);
  arrays_.m = at(plan_.m);
  arrays_.v = at(plan_.v);
  arrays_.gradient = at(plan_.embedding_gradient);  // of the embedding table, which starts the flat space
  const std::int64_t flat = parameters_.flat_elems();
  for (const TensorView& zeroed :
       {arrays_.weights_at(0, flat), arrays_.weights_low_at(0, flat), arrays_.m_at(0, flat), arrays_.v_at(0, flat)}) {
    if (zeroed) backend_.enqueue(streams_.compute.get(), Fill{.x = zeroed});
  }
}

void Engine::Impl::create_slots() {
  const auto addresses = [this](const std::vector<MemoryPlan::Id>& ids) {
    std::vector<void*> result;
    for (const MemoryPlan::Id id : ids) result.push_back(at(id));
    return result;
  };
  if (options_.training && !resident()) {
    queue_ =
        std::make_unique<OptimizerQueue>(backend_, parameters_, pieces_, arrays_, options_.decay_embeddings, pool_);
  }
  if (resident()) {
    weights_.emplace(streams_, parameters_, pieces_, arrays_);
  } else {
    weights_.emplace(streams_, parameters_, pieces_, arrays_, queue_.get(), addresses(plan_.weight_slots),
                     at(plan_.norm_weight_slot));
  }
  if (options_.training) {
    gradients_.emplace(streams_, parameters_, pieces_, arrays_, queue_.get(), addresses(plan_.grad_slots),
                       at(plan_.norm_grad_slot));
  }
}

void Engine::Impl::allocate_staging() {
  const auto elem_bytes = size_of(options_.dtype);
  const auto n = static_cast<std::size_t>(options_.max_sequences() * options_.seq_len);
  const auto row_bytes = static_cast<std::size_t>(config_.hidden_size) * elem_bytes;
  const auto staging = [this](std::size_t size_bytes) { return allocate_host(size_bytes, "staging"); };
  host_tokens_ = static_cast<std::int32_t*>(staging(3 * n * sizeof(std::int32_t)));
  host_losses_ = static_cast<float*>(staging((kLossHistory + 1) * sizeof(float)));
  const std::int64_t chunk_rows = parameters_.segment(parameters_.head_segment(0)).n_rows;
  host_logits_ = staging(static_cast<std::size_t>(chunk_rows) * elem_bytes);
  host_piece_elems_ = piece_elems(options_);
  if (resident()) {
    host_piece_ = staging(static_cast<std::size_t>(host_piece_elems_) * sizeof(float));
    if (arrays_.split_master()) host_piece_low_ = staging(static_cast<std::size_t>(host_piece_elems_) * 2);
  } else {
    host_x_ = staging(n * row_bytes);
    if (options_.training) host_d_x_ = staging(n * row_bytes);
  }
  for (auto* event : {&tokens_ready_, &pass_ended_, &d_stream_ready_, &d_x_arrived_, &logits_ready_}) {
    *event = backend_.create_event();
  }
  for (StepRecord& record : records_) {
    for (auto* event : {&record.begun, &record.ended, &record.loss_arrived}) *event = backend_.create_event();
  }
}

void Engine::Impl::upload_rope_table() {
  const LlamaShape shape(config_, options_.batch_size, options_.seq_len);
  const RopeTable table = buffers_.rope(shape);
  const std::size_t table_bytes = table.cos.size_bytes();
  const Buffer host = backend_.allocate_host(2 * table_bytes, "RoPE tables");
  auto* cos = static_cast<float*>(host.data());
  float* sin = cos + table.cos.elems();
  fill_rope_table(config_, options_.seq_len, cos, sin);
  streams_.to_device(table.cos.data, cos, table_bytes);
  streams_.to_device(table.sin.data, sin, table_bytes);
  backend_.sync(streams_.h2d.get());
  backend_.sync(streams_.compute.get());
}

}  // namespace ferry
