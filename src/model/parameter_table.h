// SPDX-License-Identifier: Apache-2.0
// The single list of a Llama's parameters: names, shapes, decay flags, and their place in the flat parameter space.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "config/model_config.h"

namespace ferry {

/// One parameter as Hugging Face names it.
struct ParameterInfo {
  std::string name;
  std::vector<std::int64_t> shape;  // (rows, columns) or (n)
  std::int64_t offset = 0;          // first element in the flat space
  std::int64_t elems = 0;
  bool is_norm = false;       // initialised to 1, never decayed
  bool is_embedding = false;  // decayed only if asked
  bool decayed = false;       // weight decay applies
  bool trained = true;        // false: frozen, it costs no optimizer state
};

/// Which parameters are trained, and how.
struct ParameterRules {
  bool decay_embeddings = false;
  std::vector<std::string> freeze;  // patterns of names; * stands for any text
};

/// A run of parameters that travels as one piece.
struct Segment {
  enum class Kind {
    kEmbedding,  // rows of an untied input embedding: read and updated on the host, never fetched
    kLayer,      // one transformer layer
    kFinalNorm,
    kHead,  // rows of lm_head, or of the tied table
  };
  Kind kind = Kind::kLayer;
  std::int64_t index = 0;  // layer number, or number of the vocabulary chunk
  std::int64_t offset = 0;
  std::int64_t elems = 0;
  std::int64_t first_row = 0;  // of the vocabulary, for kEmbedding and kHead
  std::int64_t n_rows = 0;
};

/// Flat space: embedding table, layers, final norm, untied lm_head. Every matrix product's weight starts at a multiple
/// of kAlignElems; q, k, v and gate, up follow each other without a gap, so that each group is one (rows, C) matrix.
class ParameterTable {
 public:
  static constexpr std::int64_t kAlignElems = 128;  // 256 bytes of bf16

  /// `vocab_chunk` rows per vocabulary segment (the last may be smaller); >= 1. Throws Error{kConfig} for a pattern
  /// that no name matches.
  ParameterTable(const ModelConfig& config, std::int64_t vocab_chunk, const ParameterRules& rules = {});

  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const Segment& segment(int id) const { return segments_[static_cast<std::size_t>(id)]; }
  /// Extent of the flat space, padding included.
  std::int64_t flat_elems() const { return flat_elems_; }
  /// Number of trained parameters, padding not included.
  std::int64_t n_parameters() const;
  /// Largest segment that travels to the device.
  std::int64_t max_streamed_elems() const;
  /// Any parameter of the segment is trained.
  bool is_trained(const Segment& segment) const;

  bool tied() const { return tied_; }
  int layer_segment(std::int64_t layer) const { return first_layer_ + static_cast<int>(layer); }
  int final_norm_segment() const { return final_norm_; }
  /// Segments of the output head: lm_head's, or the tied table's.
  int n_head_segments() const { return n_vocab_segments_; }
  int head_segment(int chunk) const { return first_head_ + chunk; }
  /// Segments whose rows are the input embedding: the head's own when tied.
  int n_embedding_segments() const { return n_vocab_segments_; }
  int embedding_segment(int chunk) const { return first_embedding_ + chunk; }

  /// First parameter that overlaps elements >= offset.
  std::size_t first_parameter_at(std::int64_t offset) const;

 private:
  void apply(const ParameterRules& rules);
  void add(std::string name, std::vector<std::int64_t> shape, bool aligned);
  void add_layer(const ModelConfig& config, std::int64_t layer);
  void add_vocabulary(Segment::Kind kind, const ModelConfig& config, std::int64_t vocab_chunk);

  std::vector<ParameterInfo> parameters_;
  std::vector<Segment> segments_;
  std::int64_t flat_elems_ = 0;
  bool tied_ = false;
  int first_embedding_ = 0;
  int first_layer_ = 0;
  int final_norm_ = 0;
  int first_head_ = 0;
  int n_vocab_segments_ = 0;
};

}  // namespace ferry
