// SPDX-License-Identifier: Apache-2.0
// Lays out the flat parameter space in the order in which a forward pass reads it.
#include "model/parameter_table.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "core/int_math.h"

namespace ferry {
namespace {

std::int64_t count(const std::vector<std::int64_t>& shape) {
  std::int64_t elems = 1;
  for (const std::int64_t extent : shape) elems *= extent;
  return elems;
}

/// `*` matches any text, the empty one too; everything else itself.
bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (std::size_t begin = star; begin <= name.size(); ++begin) {
    if (matches(rest, name.substr(begin))) return true;
  }
  return false;
}

}  // namespace

ParameterTable::ParameterTable(const ModelConfig& config, std::int64_t vocab_chunk, const ParameterRules& rules)
    : tied_(config.tie_word_embeddings) {
  FERRY_ASSERT(vocab_chunk >= 1);
  add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, true);
  parameters_.back().is_embedding = true;
  first_embedding_ = first_head_ = 0;
  add_vocabulary(tied_ ? Segment::Kind::kHead : Segment::Kind::kEmbedding, config, vocab_chunk);
  n_vocab_segments_ = static_cast<int>(segments_.size());

  first_layer_ = static_cast<int>(segments_.size());
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) add_layer(config, layer);

  final_norm_ = static_cast<int>(segments_.size());
  add("model.norm.weight", {config.hidden_size}, true);
  parameters_.back().is_norm = true;
  segments_.push_back({.kind = Segment::Kind::kFinalNorm,
                       .index = 0,
                       .offset = parameters_.back().offset,
                       .elems = config.hidden_size,
                       .first_row = 0,
                       .n_rows = 0});
  if (!tied_) {
    first_head_ = static_cast<int>(segments_.size());
    add("lm_head.weight", {config.vocab_size, config.hidden_size}, true);
    add_vocabulary(Segment::Kind::kHead, config, vocab_chunk);
  }
  apply(rules);
}

void ParameterTable::apply(const ParameterRules& rules) {
  for (ParameterInfo& info : parameters_) {
    info.decayed = !info.is_norm && (rules.decay_embeddings || !info.is_embedding);
  }
  for (const std::string& pattern : rules.freeze) {
    bool found = false;
    for (ParameterInfo& info : parameters_) {
      if (!matches(pattern, info.name)) continue;
      found = true;
      info.trained = false;
    }
    FERRY_CHECK(found, kConfig,
                "freeze: no parameter matches '{}': expected names such as {}, where * stands for any text, as in "
                "model.layers.0.*",
                pattern, parameters_[1].name);
  }
}

bool ParameterTable::is_trained(const Segment& segment) const {
  for (std::size_t i = first_parameter_at(segment.offset); i < parameters_.size(); ++i) {
    if (parameters_[i].offset >= segment.offset + segment.elems) break;
    if (parameters_[i].trained) return true;
  }
  return false;
}

void ParameterTable::add(std::string name, std::vector<std::int64_t> shape, bool aligned) {
  ParameterInfo info;
  info.name = std::move(name);
  info.elems = count(shape);
  info.shape = std::move(shape);
  info.offset = aligned ? round_up(flat_elems_, kAlignElems) : flat_elems_;
  flat_elems_ = info.offset + info.elems;
  parameters_.push_back(std::move(info));
}

void ParameterTable::add_layer(const ModelConfig& config, std::int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::int64_t width = config.hidden_size;
  const std::int64_t q_rows = config.n_heads * config.head_dim;
  const std::int64_t kv_rows = config.n_kv_heads * config.head_dim;
  const std::size_t first = parameters_.size();
  add(prefix + "input_layernorm.weight", {width}, true);
  parameters_.back().is_norm = true;
  add(prefix + "self_attn.q_proj.weight", {q_rows, width}, true);
  add(prefix + "self_attn.k_proj.weight", {kv_rows, width}, false);
  add(prefix + "self_attn.v_proj.weight", {kv_rows, width}, false);
  add(prefix + "self_attn.o_proj.weight", {width, q_rows}, true);
  add(prefix + "post_attention_layernorm.weight", {width}, true);
  parameters_.back().is_norm = true;
  add(prefix + "mlp.gate_proj.weight", {config.intermediate_size, width}, true);
  add(prefix + "mlp.up_proj.weight", {config.intermediate_size, width}, false);
  add(prefix + "mlp.down_proj.weight", {width, config.intermediate_size}, true);
  const std::int64_t offset = parameters_[first].offset;
  segments_.push_back({.kind = Segment::Kind::kLayer,
                       .index = layer,
                       .offset = offset,
                       .elems = flat_elems_ - offset,
                       .first_row = 0,
                       .n_rows = 0});
}

void ParameterTable::add_vocabulary(Segment::Kind kind, const ModelConfig& config, std::int64_t vocab_chunk) {
  const ParameterInfo& table = parameters_.back();
  for (std::int64_t row = 0, chunk = 0; row < config.vocab_size; row += vocab_chunk, ++chunk) {
    const std::int64_t rows = std::min(vocab_chunk, config.vocab_size - row);
    segments_.push_back({.kind = kind,
                         .index = chunk,
                         .offset = table.offset + row * config.hidden_size,
                         .elems = rows * config.hidden_size,
                         .first_row = row,
                         .n_rows = rows});
  }
}

std::int64_t ParameterTable::n_parameters() const {
  std::int64_t total = 0;
  for (const ParameterInfo& info : parameters_) total += info.elems;
  return total;
}

std::int64_t ParameterTable::max_streamed_elems() const {
  std::int64_t largest = 0;
  for (const Segment& segment : segments_) {
    if (segment.kind != Segment::Kind::kEmbedding) largest = std::max(largest, segment.elems);
  }
  return largest;
}

std::size_t ParameterTable::first_parameter_at(std::int64_t offset) const {
  const auto it = std::partition_point(parameters_.begin(), parameters_.end(),
                                       [offset](const ParameterInfo& p) { return p.offset + p.elems <= offset; });
  return static_cast<std::size_t>(it - parameters_.begin());
}

}  // namespace ferry
