// SPDX-License-Identifier: Apache-2.0
// Planning and allocating everything that the engine will ever use.
#include <algorithm>

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

std::vector<Home> choose_homes(const ParameterTable& parameters, const EngineOptions& options) {
  std::vector<Home> homes;
  for (const Segment& segment : parameters.segments()) {
    const bool is_layer = segment.kind == Segment::Kind::kLayer;
    const bool on_device = options.offload == Offload::kNone || (options.offload == Offload::kLayers && !is_layer) ||
                           (is_layer && segment.index < options.resident_state_layers);
    homes.push_back(on_device ? Home::kDevice : Home::kHost);
  }
  return homes;
}

/// On the host every trained gradient has its place, but for an untied embedding: only the batch's rows have one. On
/// the device the embedding's is summed up over the step, and clipping holds all of them until the norm is known.
ArrayLayout array_layout(const ParameterTable& parameters, const EngineOptions& options) {
  ArrayLayout layout{.dtype = options.dtype,
                     .state = options.optimizer_state,
                     .training = options.training,
                     .homes = choose_homes(parameters, options),
                     .trained = {},
                     .gradient = {}};
  for (const ParameterInfo& info : parameters.parameters()) layout.trained.push_back(info.trained);
  for (std::size_t i = 0; i < layout.homes.size(); ++i) {
    const Segment& segment = parameters.segment(static_cast<int>(i));
    const bool is_table = segment.offset < parameters.parameters().front().elems;
    const bool is_untied_table = segment.kind == Segment::Kind::kEmbedding;
    const bool kept = layout.homes[i] == Home::kHost ? !is_untied_table : is_table || options.grad_clip > 0;
    layout.gradient.push_back(kept && parameters.is_trained(segment));
  }
  return layout;
}

Engine::Impl::Impl(Backend& backend, const ModelConfig& config, const EngineOptions& options)
    : backend_(backend),
      config_(checked_model(config, options)),
      options_(options),
      parameters_(config_, choose_vocab_chunk(config_, options_), {options.decay_embeddings, options.freeze}),
      pieces_(parameters_, piece_elems(options_)),
      arrays_(parameters_, array_layout(parameters_, options_)),
      buffers_(plan_.memory, backend, config_, options_, parameters_),
      host_piece_elems_(piece_elems(options_)),
      streams_(backend, parameters_, pieces_),
      pool_(threads_or_all(options.threads)) {
  plan_device();
  plan_host();
  plan_.memory.pack();
  arena_ = backend_.allocate_device(plan_.memory.arena_bytes(), "the device arena");
  buffers_.bind(arena_.data());
  host_.memory.allocate(backend_, pool_);
  bind_arrays();
  create_events();
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

bool Engine::Impl::anything_on(Home home) const { return arrays_.size_bytes(ParameterArray::kWeight, home) > 0; }

/// What lives on the device, and the slots through which everything else passes.
void Engine::Impl::plan_device() {
  constexpr const char* kPurposes[] = {"weights", "optimizer state", "optimizer state", "optimizer state",
                                       "gradients"};  // by ParameterArray
  const auto elem_bytes = size_of(options_.dtype);
  const auto slot_bytes = static_cast<std::size_t>(parameters_.max_streamed_elems()) * elem_bytes;
  const auto norm_bytes = static_cast<std::size_t>(config_.hidden_size) * elem_bytes;
  const auto all = PhaseSet::all();
  MemoryPlan& memory = plan_.memory;
  for (std::size_t i = 0; i < plan_.arrays.size(); ++i) {
    const auto array = static_cast<ParameterArray>(i);
    plan_.arrays[i] = memory.add(kPurposes[i], arrays_.size_bytes(array, Home::kDevice), all);
  }
  if (anything_on(Home::kHost)) {
    for (int i = 0; i < options_.weight_slots; ++i) {
      plan_.weight_slots.push_back(memory.add("weight slots", slot_bytes, all));
    }
    const auto own_slot = [&](int segment, std::size_t size_bytes, const char* purpose) {
      if (arrays_.home_of(parameters_.segment(segment).offset) == Home::kDevice) return;
      plan_.own_slots.emplace_back(segment, memory.add(purpose, size_bytes, all));
    };
    own_slot(parameters_.final_norm_segment(), norm_bytes, "weight slots");
    const std::int64_t end = std::min(options_.resident_state_layers + options_.resident_layers, config_.n_layers);
    for (std::int64_t layer = options_.resident_state_layers; layer < end; ++layer) {
      const int segment = parameters_.layer_segment(layer);
      own_slot(segment, static_cast<std::size_t>(parameters_.segment(segment).elems) * elem_bytes, "resident weights");
    }
  }
  if (!options_.training) return;
  const int n_grad_slots = anything_on(Home::kHost) ? options_.grad_slots : 1;
  for (int i = 0; i < n_grad_slots; ++i) plan_.grad_slots.push_back(memory.add("gradient slots", slot_bytes, all));
  plan_.norm_grad_slot = memory.add("gradient slots", norm_bytes, all);
  if (takes_norms()) {
    const auto n_norms = static_cast<std::size_t>(GradientNorms::count(parameters_));
    plan_.norms = memory.add("tokens, RoPE tables, losses", n_norms * sizeof(float), all);
  }
}

void Engine::Impl::plan_host() {
  constexpr const char* kPurposes[] = {"weights", "low halves of the f32 masters", "first moments", "second moments",
                                       "gradients"};  // by ParameterArray
  constexpr const char* kStaging = "staging";
  const auto elem_bytes = size_of(options_.dtype);
  const auto n = static_cast<std::size_t>(options_.max_sequences() * options_.seq_len);
  const auto rows_bytes = n * static_cast<std::size_t>(config_.hidden_size) * elem_bytes;
  HostMemory& memory = host_.memory;
  for (std::size_t i = 0; i < host_.arrays.size(); ++i) {
    host_.arrays[i] = memory.add(kPurposes[i], arrays_.size_bytes(static_cast<ParameterArray>(i), Home::kHost));
  }
  const auto n_tokens = 4 * n + (takes_norms() ? static_cast<std::size_t>(config_.vocab_size) : 0);
  host_.tokens = memory.add(kStaging, n_tokens * sizeof(std::int32_t));
  host_.losses = memory.add(kStaging, (kLossHistory + 1) * sizeof(float));
  const std::int64_t chunk_rows = parameters_.segment(parameters_.head_segment(0)).n_rows;
  host_.logits = memory.add(kStaging, static_cast<std::size_t>(chunk_rows) * elem_bytes);
  const auto piece = static_cast<std::size_t>(anything_on(Home::kDevice) ? host_piece_elems_ : 0);
  host_.piece = memory.add(kStaging, piece * sizeof(float));
  host_.piece_low = memory.add(kStaging, arrays_.split_master() ? piece * sizeof(std::int16_t) : 0);
  const bool table_on_host = table_is_on(Home::kHost);
  host_.x = memory.add(kStaging, table_on_host ? rows_bytes : 0);
  if (!options_.training) return;
  const bool table_trained = parameters_.parameters().front().trained;
  host_.d_x = memory.add(kStaging, table_trained && (table_on_host || takes_norms()) ? rows_bytes : 0);
  const bool sums_apart = table_trained && table_on_host && !parameters_.tied();
  host_.row_gradients = memory.add("gradients", sums_apart ? rows_bytes : 0);
  const auto n_norms = static_cast<std::size_t>(takes_norms() ? GradientNorms::count(parameters_) : 0);
  host_.norms = memory.add(kStaging, 2 * n_norms * sizeof(float));
}

void* Engine::Impl::at(MemoryPlan::Id id) const {
  return static_cast<std::byte*>(arena_.data()) + plan_.memory.offset(id);
}

void Engine::Impl::bind_arrays() {
  for (std::size_t i = 0; i < plan_.arrays.size(); ++i) {
    const auto array = static_cast<ParameterArray>(i);
    arrays_.bind(array, Home::kHost, host_.memory.at(host_.arrays[i]));
    const auto size = static_cast<std::int64_t>(arrays_.size_bytes(array, Home::kDevice));
    if (size == 0) continue;
    arrays_.bind(array, Home::kDevice, at(plan_.arrays[i]));
    const DType dtype = arrays_.dtype_of(array);
    const TensorView whole(at(plan_.arrays[i]), dtype, {size / static_cast<std::int64_t>(size_of(dtype))});
    backend_.enqueue(streams_.compute.get(), Fill{.x = whole});
  }
}

void Engine::Impl::create_slots() {
  if (options_.training) {
    const OptimizerQueueOptions queue{.adamw = options_.adamw,
                                      .grad_clip = options_.grad_clip,
                                      .norms = takes_norms(),
                                      .timeline = &streams_.timeline};
    queue_ = std::make_unique<OptimizerQueue>(backend_, parameters_, pieces_, arrays_, queue, pool_);
  }
  WeightSlotMemory memory;
  for (const MemoryPlan::Id id : plan_.weight_slots) memory.shared.push_back(at(id));
  for (const auto& [segment, id] : plan_.own_slots) memory.own.push_back({segment, at(id)});
  weights_.emplace(streams_, parameters_, pieces_, arrays_, queue_.get(), memory);
  if (!options_.training) return;
  if (takes_norms()) {
    norms_.emplace(streams_, parameters_, *queue_, static_cast<float*>(at(plan_.norms)),
                   host_.memory.as<float>(host_.norms));
  }
  std::vector<void*> slots;
  for (const MemoryPlan::Id id : plan_.grad_slots) slots.push_back(at(id));
  gradients_.emplace(streams_, parameters_, pieces_, arrays_, *queue_, norms_ ? &*norms_ : nullptr, std::move(slots),
                     at(plan_.norm_grad_slot));
}

void Engine::Impl::create_events() {
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
