// SPDX-License-Identifier: Apache-2.0
// Batches of sequences: endless with an exact cursor for training, one pass for evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "data/sequence_set.h"

namespace ferry {

struct Batch {
  std::int64_t batch_size = 0;
  std::int64_t seq_len = 0;
  std::vector<std::int32_t> inputs;   // (B, T) row-major
  std::vector<std::int32_t> targets;  // (B, T) row-major; kIgnoreIndex where masked
  std::int64_t n_valid_targets = 0;   // may be 0 where everything is masked
};

enum class SequenceOrder { kSequential, kShuffled };

/// Where the next batch begins.
struct DataCursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // in sequences, within the epoch's order

  bool operator==(const DataCursor&) const = default;
};

struct BatchLoaderOptions {
  std::int64_t batch_size = 1;
  SequenceOrder order = SequenceOrder::kSequential;
  std::uint64_t seed = 0;  // of the shuffled order
};

/// Every sequence once per epoch, in file order or in a permutation that depends on (seed, epoch) alone. A batch that
/// reaches the end of an epoch is filled from the next one: all batches are full and no sequence is dropped.
class BatchLoader {
 public:
  /// Throws Error{kConfig} unless batch_size >= 1.
  BatchLoader(SequenceSet sequences, const BatchLoaderOptions& options);

  const SequenceSet& sequences() const { return sequences_; }

  /// Fills `batch`, whose memory is reused. Throws Error{kIo} as SequenceSet::read; the cursor then stays.
  void next(Batch& batch) { cursor_ = read(batch); }
  /// Fills `batch` with what next() will give. Throws as next().
  void peek(Batch& batch) const { read(batch); }

  DataCursor cursor() const { return cursor_; }
  /// The next batch is the one that followed when cursor() returned this; costs nothing. Throws Error{kIo} for a
  /// cursor that these data cannot have.
  void set_cursor(DataCursor cursor);

 private:
  /// Returns the cursor of the batch after it.
  DataCursor read(Batch& batch) const;
  std::int64_t sequence_at(DataCursor cursor) const;

  SequenceSet sequences_;
  BatchLoaderOptions options_;
  DataCursor cursor_;
};

/// All sequences once, in file order.
class EvaluationBatches {
 public:
  /// Throws Error{kConfig} unless batch_size >= 1.
  EvaluationBatches(SequenceSet sequences, std::int64_t batch_size);

  const SequenceSet& sequences() const { return sequences_; }

  /// False when all are read. The last batch may have fewer rows. Throws Error{kIo} as SequenceSet::read.
  bool next(Batch& batch);
  /// Begins again.
  void rewind() { position_ = 0; }

 private:
  SequenceSet sequences_;
  std::int64_t batch_size_;
  std::int64_t position_ = 0;
};

}  // namespace ferry
