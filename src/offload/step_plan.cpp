// SPDX-License-Identifier: Apache-2.0
// Homes of segments, and the sizes of everything that is neither an activation nor code.
#include "offload/step_plan.h"

#include <algorithm>

#include "core/error.h"
#include "offload/gradient_norms.h"
#include "offload/residual_store.h"

namespace ferry {

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
  FERRY_CHECK(options.cache_tokens <= config.max_position_embeddings, kConfig,
              "a cache of {} tokens: the model has max_position_embeddings {}", options.cache_tokens,
              config.max_position_embeddings);
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

StepPlan::StepPlan(const ModelConfig& model, const EngineOptions& engine_options, const ScratchSizes& sizes)
    : config(checked_model(model, engine_options)),
      options(engine_options),
      parameters(config, choose_vocab_chunk(config, options), {options.decay_embeddings, options.freeze}),
      arrays(parameters, array_layout(parameters, options)),
      buffers(device.memory, sizes, config, options, parameters) {
  plan_device();
  plan_host();
  device.memory.pack();
}

std::int64_t StepPlan::piece_elems() const {
  return std::max<std::int64_t>(1, options.piece_bytes / static_cast<std::int64_t>(size_of(options.dtype)));
}

/// What lives on the device, and the slots through which everything else passes.
void StepPlan::plan_device() {
  constexpr const char* kPurposes[] = {"weights", "optimizer state", "optimizer state", "optimizer state",
                                       "gradients"};  // by ParameterArray
  const auto elem_bytes = size_of(options.dtype);
  const auto slot_bytes = static_cast<std::size_t>(parameters.max_streamed_elems()) * elem_bytes;
  const auto norm_bytes = static_cast<std::size_t>(config.hidden_size) * elem_bytes;
  const auto all = PhaseSet::all();
  MemoryPlan& memory = device.memory;
  for (std::size_t i = 0; i < device.arrays.size(); ++i) {
    const auto array = static_cast<ParameterArray>(i);
    device.arrays[i] = memory.add(kPurposes[i], arrays.size_bytes(array, Home::kDevice), all);
  }
  if (anything_on(Home::kHost)) {
    for (int i = 0; i < options.weight_slots; ++i) {
      device.weight_slots.push_back(memory.add("weight slots", slot_bytes, all));
    }
    const auto own_slot = [&](int segment, std::size_t size_bytes, const char* purpose) {
      if (arrays.home_of(parameters.segment(segment).offset) == Home::kDevice) return;
      device.own_slots.emplace_back(segment, memory.add(purpose, size_bytes, all));
    };
    own_slot(parameters.final_norm_segment(), norm_bytes, "weight slots");
    const std::int64_t end = std::min(options.resident_state_layers + options.resident_layers, config.n_layers);
    for (std::int64_t layer = options.resident_state_layers; layer < end; ++layer) {
      const int segment = parameters.layer_segment(layer);
      own_slot(segment, static_cast<std::size_t>(parameters.segment(segment).elems) * elem_bytes, "resident weights");
    }
  }
  if (!options.training) return;
  const int n_grad_slots = anything_on(Home::kHost) ? options.grad_slots : 1;
  for (int i = 0; i < n_grad_slots; ++i) device.grad_slots.push_back(memory.add("gradient slots", slot_bytes, all));
  device.norm_grad_slot = memory.add("gradient slots", norm_bytes, all);
  if (takes_norms()) {
    const auto n_norms = static_cast<std::size_t>(GradientNorms::count(parameters));
    device.norms = memory.add("tokens, RoPE tables, losses", n_norms * sizeof(float), all);
  }
}

void StepPlan::plan_host() {
  constexpr const char* kPurposes[] = {"weights", "low halves of the f32 masters", "first moments", "second moments",
                                       "gradients"};  // by ParameterArray
  constexpr const char* kStaging = "staging";
  const auto elem_bytes = size_of(options.dtype);
  const auto n = static_cast<std::size_t>(options.max_sequences() * options.seq_len);
  const auto rows_bytes = n * static_cast<std::size_t>(config.hidden_size) * elem_bytes;
  HostMemory& memory = host.memory;
  for (std::size_t i = 0; i < host.arrays.size(); ++i) {
    host.arrays[i] = memory.add(kPurposes[i], arrays.size_bytes(static_cast<ParameterArray>(i), Home::kHost));
  }
  const auto n_tokens = 4 * n + (takes_norms() ? static_cast<std::size_t>(config.vocab_size) : 0);
  host.tokens = memory.add(kStaging, n_tokens * sizeof(std::int32_t));
  host.losses = memory.add(kStaging, (Engine::kLossHistory + 1) * sizeof(float));
  const std::int64_t chunk_rows = parameters.segment(parameters.head_segment(0)).n_rows;
  host.logits = memory.add(kStaging, static_cast<std::size_t>(chunk_rows) * elem_bytes);
  const auto piece = static_cast<std::size_t>(anything_on(Home::kDevice) ? piece_elems() : 0);
  host.piece = memory.add(kStaging, piece * sizeof(float));
  host.piece_low = memory.add(kStaging, arrays.split_master() ? piece * sizeof(std::int16_t) : 0);
  const bool table_on_host = table_is_on(Home::kHost);
  host.x = memory.add(kStaging, table_on_host ? rows_bytes : 0);
  if (!options.training) return;
  const bool table_trained = parameters.parameters().front().trained;
  host.d_x = memory.add(kStaging, table_trained && (table_on_host || takes_norms()) ? rows_bytes : 0);
  host.residuals = memory.add("residuals", static_cast<std::size_t>(ResidualStore::count(buffers)) * rows_bytes);
  const auto n_norms = static_cast<std::size_t>(takes_norms() ? GradientNorms::count(parameters) : 0);
  host.norms = memory.add(kStaging, 2 * n_norms * sizeof(float));
}

}  // namespace ferry
