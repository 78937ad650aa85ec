// SPDX-License-Identifier: Apache-2.0
// Order, cursor and batch filling.
#include "data/batch_loader.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/permutation.h"

namespace ferry {
namespace {

void check_batch_size(std::int64_t batch_size) {
  FERRY_CHECK(batch_size >= 1 && batch_size <= INT32_MAX, kConfig, "batch_size is {}, expected 1 to 2147483647",
              batch_size);
}

void resize(Batch& batch, std::int64_t batch_size, std::int64_t seq_len) {
  const auto n_tokens = static_cast<std::size_t>(batch_size) * static_cast<std::size_t>(seq_len);
  batch.batch_size = batch_size;
  batch.seq_len = seq_len;
  batch.inputs.resize(n_tokens);
  batch.targets.resize(n_tokens);
  batch.n_valid_targets = 0;
}

void read_row(const SequenceSet& sequences, std::int64_t sequence, Batch& batch, std::int64_t row) {
  const auto width = static_cast<std::size_t>(batch.seq_len);
  const std::size_t begin = static_cast<std::size_t>(row) * width;
  batch.n_valid_targets += sequences.read(sequence, std::span(batch.inputs).subspan(begin, width),
                                          std::span(batch.targets).subspan(begin, width));
}

}  // namespace

BatchLoader::BatchLoader(SequenceSet sequences, const BatchLoaderOptions& options)
    : sequences_(std::move(sequences)), options_(options) {
  check_batch_size(options.batch_size);
}

DataCursor BatchLoader::read(Batch& batch) const {
  resize(batch, options_.batch_size, sequences_.seq_len());
  DataCursor cursor = cursor_;
  for (std::int64_t row = 0; row < options_.batch_size; ++row) {
    read_row(sequences_, sequence_at(cursor), batch, row);
    if (++cursor.position == sequences_.n_sequences()) cursor = {cursor.epoch + 1, 0};
  }
  return cursor;
}

void BatchLoader::set_cursor(DataCursor cursor) {
  FERRY_CHECK(cursor.epoch >= 0 && cursor.position >= 0 && cursor.position < sequences_.n_sequences(), kIo,
              "the data position to resume from (epoch {}, sequence {}) does not exist: the data have {} sequences; "
              "were files or seq_len changed?",
              cursor.epoch, cursor.position, sequences_.n_sequences());
  cursor_ = cursor;
}

std::int64_t BatchLoader::sequence_at(DataCursor cursor) const {
  if (options_.order == SequenceOrder::kSequential) return cursor.position;
  return Permutation(sequences_.n_sequences(), options_.seed, cursor.epoch)(cursor.position);
}

EvaluationBatches::EvaluationBatches(SequenceSet sequences, std::int64_t batch_size)
    : sequences_(std::move(sequences)), batch_size_(batch_size) {
  check_batch_size(batch_size);
}

bool EvaluationBatches::next(Batch& batch) {
  const std::int64_t n_rows = std::min(batch_size_, sequences_.n_sequences() - position_);
  if (n_rows == 0) return false;
  resize(batch, n_rows, sequences_.seq_len());
  for (std::int64_t row = 0; row < n_rows; ++row) read_row(sequences_, position_ + row, batch, row);
  position_ += n_rows;
  return true;
}

}  // namespace ferry
