// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.h"

#include <algorithm>

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;
using Row = std::vector<std::int32_t>;

// Three shards with 4, 5 and 2 sequences of two tokens: sequence i has the one input i.
class NumberedSequences {
 public:
  static constexpr std::int64_t kSequences = 11;

  NumberedSequences() {
    std::uint32_t next = 0;
    for (const int n_sequences : {4, 5, 2}) {
      std::vector<std::uint32_t> tokens;
      for (int i = 0; i < n_sequences; ++i, ++next) tokens.insert(tokens.end(), {next, next + 100});
      const auto path = folder_ / std::to_string(sources_.size());
      write_token_shard(path, TokenWidth::kU16, 200, tokens);
      sources_.push_back({path, TokenFormat::kShard});
    }
  }

  SequenceSet set() const { return SequenceSet(sources_, 1, 200); }
  BatchLoader loader(std::int64_t batch_size, SequenceOrder order, std::uint64_t seed = 1) const {
    return BatchLoader(set(), {batch_size, order, seed});
  }

 private:
  TemporaryFolder folder_;
  std::vector<TokenSource> sources_;
};

Row next_inputs(BatchLoader& loader) {
  Batch batch;
  loader.next(batch);
  return batch.inputs;
}

Row epoch_order(BatchLoader loader, std::int64_t epoch) {
  loader.set_cursor({epoch, 0});
  Row order;
  while (loader.cursor().epoch == epoch) order.push_back(next_inputs(loader)[0]);
  return order;
}

TEST_CASE("a batch has its rows in order, with targets and their count") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "abcdefgh");
  write_file(folder / "a.txt.mask", std::string("\1\1\0\1\1\1\1\1", 8));
  BatchLoader loader(SequenceSet({{folder / "a.txt", TokenFormat::kBytes}}, 3, 256), {2});
  Batch batch;
  loader.next(batch);
  CHECK(batch.batch_size == 2);
  CHECK(batch.seq_len == 3);
  CHECK(batch.inputs == Row{'a', 'b', 'c', 'e', 'f', 'g'});
  CHECK(batch.targets == Row{'b', kIgnoreIndex, 'd', 'f', 'g', 'h'});
  CHECK(batch.n_valid_targets == 5);
}

TEST_CASE("a peek shows the next batch and leaves the cursor") {
  const NumberedSequences data;
  BatchLoader loader = data.loader(4, SequenceOrder::kShuffled);
  for (int i = 0; i < 5; ++i) {
    const DataCursor cursor = loader.cursor();
    Batch peeked;
    loader.peek(peeked);
    CHECK(loader.cursor() == cursor);
    CHECK(peeked.inputs == next_inputs(loader));
  }
}

TEST_CASE("a batch of masked tokens alone has no valid target") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "ab");
  write_file(folder / "a.txt.mask", std::string(2, '\0'));
  BatchLoader loader(SequenceSet({{folder / "a.txt", TokenFormat::kBytes}}, 1, 256), {2});
  Batch batch;
  loader.next(batch);
  loader.next(batch);
  CHECK(batch.n_valid_targets == 0);
}

TEST_CASE("sequential order goes through the shards again and again, with full batches") {
  const NumberedSequences data;
  BatchLoader loader = data.loader(4, SequenceOrder::kSequential);
  CHECK(next_inputs(loader) == Row{0, 1, 2, 3});
  CHECK(next_inputs(loader) == Row{4, 5, 6, 7});
  CHECK(loader.cursor() == DataCursor{0, 8});
  CHECK(next_inputs(loader) == Row{8, 9, 10, 0});
  CHECK(loader.cursor() == DataCursor{1, 1});
}

TEST_CASE("a batch larger than the data goes around more than once") {
  const NumberedSequences data;
  BatchLoader loader = data.loader(24, SequenceOrder::kSequential);
  const Row inputs = next_inputs(loader);
  CHECK(std::ranges::count(inputs, 0) == 3);
  CHECK(std::ranges::count(inputs, 2) == 2);
  CHECK(loader.cursor() == DataCursor{2, 2});
}

TEST_CASE("the end of an epoch is the start of the next") {
  const NumberedSequences data;
  BatchLoader loader = data.loader(11, SequenceOrder::kSequential);
  (void)next_inputs(loader);
  CHECK(loader.cursor() == DataCursor{1, 0});
}

TEST_CASE("shuffled order has every sequence once in every epoch") {
  const NumberedSequences data;
  Row all(NumberedSequences::kSequences);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  for (const std::int64_t epoch : {0, 1, 2, 1000}) {
    Row order = epoch_order(data.loader(1, SequenceOrder::kShuffled), epoch);
    CHECK(order != all);
    std::ranges::sort(order);
    CHECK(order == all);
  }
}

TEST_CASE("shuffled order differs between epochs and between seeds") {
  const NumberedSequences data;
  const Row first = epoch_order(data.loader(1, SequenceOrder::kShuffled, 1), 0);
  CHECK(first == epoch_order(data.loader(1, SequenceOrder::kShuffled, 1), 0));
  CHECK(first != epoch_order(data.loader(1, SequenceOrder::kShuffled, 1), 1));
  CHECK(first != epoch_order(data.loader(1, SequenceOrder::kShuffled, 2), 0));
}

TEST_CASE("shuffled order does not depend on the batch size") {
  const NumberedSequences data;
  BatchLoader single = data.loader(1, SequenceOrder::kShuffled);
  BatchLoader batched = data.loader(5, SequenceOrder::kShuffled);
  Row expected;
  while (expected.size() < 5) expected.push_back(next_inputs(single)[0]);
  CHECK(next_inputs(batched) == expected);
}

TEST_CASE("resuming at any cursor gives the same batches, in later epochs and shards too") {
  const NumberedSequences data;
  const auto order = GENERATE(SequenceOrder::kSequential, SequenceOrder::kShuffled);
  constexpr std::size_t kBatches = 14;  // of 3: up to epoch 3
  BatchLoader straight = data.loader(3, order);
  std::vector<DataCursor> cursors;
  std::vector<Row> batches;
  while (batches.size() < kBatches) {
    cursors.push_back(straight.cursor());
    batches.push_back(next_inputs(straight));
  }
  REQUIRE(cursors.back().epoch == 3);
  for (std::size_t i = 0; i < kBatches; ++i) {
    BatchLoader resumed = data.loader(3, order);
    resumed.set_cursor(cursors[i]);
    for (std::size_t j = i; j < kBatches; ++j) CHECK(next_inputs(resumed) == batches[j]);
    CHECK(resumed.cursor() == straight.cursor());
  }
}

TEST_CASE("one sequence is enough for any order") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "abcd");
  for (const auto order : {SequenceOrder::kSequential, SequenceOrder::kShuffled}) {
    BatchLoader loader(SequenceSet({{folder / "a.txt", TokenFormat::kBytes}}, 3, 256), {2, order, 9});
    CHECK(next_inputs(loader) == Row{'a', 'b', 'c', 'a', 'b', 'c'});
    CHECK(loader.cursor() == DataCursor{2, 0});
  }
}

TEST_CASE("a bad token leaves the cursor where it was") {
  const TemporaryFolder folder;
  write_file(folder / "a", bytes_of(std::vector<std::uint16_t>{1, 2, 3, 99}));
  BatchLoader loader(SequenceSet({{folder / "a", TokenFormat::kRawU16}}, 1, 10), {2});
  check_error(ErrorKind::kIo, {"token 99 at position 3"}, [&] { (void)next_inputs(loader); });
  CHECK(loader.cursor() == DataCursor{0, 0});
}

TEST_CASE("a cursor that the data cannot have is an error") {
  const NumberedSequences data;
  BatchLoader loader = data.loader(1, SequenceOrder::kSequential);
  for (const DataCursor cursor : {DataCursor{0, 11}, DataCursor{0, -1}, DataCursor{-1, 0}}) {
    check_error(ErrorKind::kIo, {"does not exist: the data have 11 sequences"}, [&] { loader.set_cursor(cursor); });
  }
}

TEST_CASE("a batch size that is no count is an error") {
  const NumberedSequences data;
  check_error(ErrorKind::kConfig, {"batch_size is 0"}, [&] { data.loader(0, SequenceOrder::kSequential); });
  check_error(ErrorKind::kConfig, {"batch_size is -1"}, [&] { EvaluationBatches(data.set(), -1); });
}

TEST_CASE("evaluation reads every sequence once and ends with a smaller batch") {
  const NumberedSequences data;
  EvaluationBatches batches(data.set(), 4);
  for (int pass = 0; pass < 2; ++pass) {
    Batch batch;
    Row inputs;
    std::vector<std::int64_t> sizes;
    while (batches.next(batch)) {
      inputs.insert(inputs.end(), batch.inputs.begin(), batch.inputs.end());
      sizes.push_back(batch.batch_size);
      CHECK(batch.targets.size() == batch.inputs.size());
      CHECK(batch.n_valid_targets == batch.batch_size);
    }
    CHECK(sizes == std::vector<std::int64_t>{4, 4, 3});
    CHECK(inputs == Row{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    CHECK_FALSE(batches.next(batch));
    batches.rewind();
  }
}

}  // namespace
}  // namespace ferry
