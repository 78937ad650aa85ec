// SPDX-License-Identifier: Apache-2.0
// Names, shapes and places of parameters.
#include "model/parameter_table.h"

#include <set>

#include "catch.h"
#include "model/llama.h"

namespace ferry {
namespace {

ModelConfig odd_config(bool tied) {
  ModelConfig config;
  config.vocab_size = 37;
  config.hidden_size = 10;
  config.intermediate_size = 14;
  config.n_layers = 2;
  config.n_heads = 3;
  config.n_kv_heads = 1;
  config.head_dim = 4;
  config.tie_word_embeddings = tied;
  return config;
}

}  // namespace

TEST_CASE("every Hugging Face name occurs once, lm_head only when untied") {
  for (const bool tied : {true, false}) {
    const ParameterTable table(odd_config(tied), 8);
    std::set<std::string> names;
    for (const ParameterInfo& info : table.parameters()) CHECK(names.insert(info.name).second);
    CHECK(names.size() == 2U * 9 + 2 + (tied ? 0 : 1));
    CHECK(names.contains("lm_head.weight") == !tied);
    CHECK(names.contains("model.layers.1.self_attn.k_proj.weight"));
  }
}

TEST_CASE("parameters do not overlap and belong to one kind of segment each") {
  const ParameterTable table(odd_config(false), 8);
  std::int64_t end = 0;
  for (const ParameterInfo& info : table.parameters()) {
    CHECK(info.offset >= end);
    end = info.offset + info.elems;
  }
  CHECK(end == table.flat_elems());
  std::int64_t segment_end = 0;
  for (const Segment& segment : table.segments()) {
    CHECK(segment.offset >= segment_end);
    segment_end = segment.offset + segment.elems;
  }
  CHECK(table.n_head_segments() == 5);
  CHECK(table.segment(table.head_segment(4)).n_rows == 37 - 4 * 8);
  CHECK(table.segment(table.embedding_segment(0)).kind == Segment::Kind::kEmbedding);
}

TEST_CASE("a tied table is head and embedding at once") {
  const ParameterTable table(odd_config(true), 100);
  CHECK(table.n_head_segments() == 1);
  CHECK(table.head_segment(0) == table.embedding_segment(0));
  CHECK(table.segment(table.head_segment(0)).kind == Segment::Kind::kHead);
}

TEST_CASE("the views of a layer lie where the table puts its parameters") {
  const ModelConfig config = odd_config(false);
  const ParameterTable table(config, 8);
  std::vector<float> flat(static_cast<std::size_t>(table.flat_elems()));
  const Segment& segment = table.segment(table.layer_segment(1));
  const LlamaShape shape(config, 1, 1);
  const LayerTensors views = layer_tensors(shape, DType::kF32, flat.data() + segment.offset);
  const auto offset_of = [&](const std::string& name) {
    for (const ParameterInfo& info : table.parameters()) {
      if (info.name == "model.layers.1." + name + ".weight") return info.offset;
    }
    return std::int64_t{-1};
  };
  const auto offset = [&](const TensorView& view) { return view.as<float>() - flat.data(); };
  CHECK(offset(views.input_norm) == offset_of("input_layernorm"));
  CHECK(offset(views.qkv) == offset_of("self_attn.q_proj"));
  CHECK(offset(views.qkv) + 12 * 10 == offset_of("self_attn.k_proj"));
  CHECK(offset(views.qkv) + 16 * 10 == offset_of("self_attn.v_proj"));
  CHECK(views.qkv.shape[0] == 20);
  CHECK(offset(views.out_proj) == offset_of("self_attn.o_proj"));
  CHECK(offset(views.post_norm) == offset_of("post_attention_layernorm"));
  CHECK(offset(views.gate_up) == offset_of("mlp.gate_proj"));
  CHECK(offset(views.gate_up) + 14 * 10 == offset_of("mlp.up_proj"));
  CHECK(offset(views.down) == offset_of("mlp.down_proj"));
  CHECK(offset(views.down) + views.down.elems() == segment.offset + segment.elems);
}

TEST_CASE("first_parameter_at finds the parameter that holds an element or follows it") {
  const ParameterTable table(odd_config(true), 8);
  CHECK(table.first_parameter_at(0) == 0);
  CHECK(table.first_parameter_at(369) == 0);
  CHECK(table.first_parameter_at(370) == 1);
  CHECK(table.first_parameter_at(table.flat_elems()) == table.parameters().size());
}

}  // namespace ferry
