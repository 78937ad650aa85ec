// SPDX-License-Identifier: Apache-2.0
#include "data/sequence_set.h"

#include "io/file_test_helpers.h"

namespace ferry {
namespace {

using namespace test;
using Row = std::vector<std::int32_t>;

// Shards with these numbers of tokens, whose tokens count on from shard to shard.
std::vector<TokenSource> counting_shards(const TemporaryFolder& folder, const std::vector<std::size_t>& sizes) {
  std::vector<TokenSource> sources;
  std::uint32_t token = 0;
  for (const std::size_t size : sizes) {
    std::vector<std::uint32_t> tokens(size);
    for (std::uint32_t& value : tokens) value = token++;
    const auto path = folder / std::to_string(sources.size());
    write_token_shard(path, TokenWidth::kU16, 1000, tokens);
    sources.push_back({path, TokenFormat::kShard});
  }
  return sources;
}

struct Sequence {
  Row inputs;
  Row targets;
  std::int64_t n_valid = 0;
};

Sequence read(const SequenceSet& set, std::int64_t index) {
  Sequence sequence;
  sequence.inputs.resize(static_cast<std::size_t>(set.seq_len()));
  sequence.targets = sequence.inputs;
  sequence.n_valid = set.read(index, sequence.inputs, sequence.targets);
  return sequence;
}

TEST_CASE("targets are the inputs one token later") {
  const TemporaryFolder folder;
  const SequenceSet set(counting_shards(folder, {8}), 3, 1000);
  CHECK(set.n_sequences() == 2);
  CHECK(read(set, 0).inputs == Row{0, 1, 2});
  CHECK(read(set, 0).targets == Row{1, 2, 3});
  CHECK(read(set, 0).n_valid == 3);
  CHECK(read(set, 1).inputs == Row{4, 5, 6});
  CHECK(read(set, 1).targets == Row{5, 6, 7});
}

TEST_CASE("seq_len + 1 tokens are one sequence, and one more or less changes nothing until the next") {
  const TemporaryFolder folder;
  for (const auto& [n_tokens, n_sequences] :
       std::vector<std::pair<std::size_t, std::int64_t>>{{4, 1}, {5, 1}, {7, 1}, {8, 2}, {9, 2}}) {
    CHECK(SequenceSet(counting_shards(folder, {n_tokens}), 3, 1000).n_sequences() == n_sequences);
  }
}

TEST_CASE("sequences never cross shards, and shards too short for one are skipped") {
  const TemporaryFolder folder;
  const SequenceSet set(counting_shards(folder, {2, 9, 3, 1, 4, 2}), 3, 1000);
  CHECK(set.n_tokens() == 21);
  REQUIRE(set.n_sequences() == 3);
  CHECK(read(set, 0).inputs == Row{2, 3, 4});
  CHECK(read(set, 1).inputs == Row{6, 7, 8});
  CHECK(read(set, 2).inputs == Row{15, 16, 17});
  CHECK(read(set, 2).targets == Row{16, 17, 18});
}

TEST_CASE("masked tokens are inputs but no targets") {
  const TemporaryFolder folder;
  const auto sources = counting_shards(folder, {8});
  write_file(folder / "0.mask", std::string("\1\0\1\0\0\1\1\1", 8));
  const SequenceSet set(sources, 3, 1000);
  CHECK(read(set, 0).inputs == Row{0, 1, 2});
  CHECK(read(set, 0).targets == Row{kIgnoreIndex, 2, kIgnoreIndex});
  CHECK(read(set, 0).n_valid == 1);
  CHECK(read(set, 1).targets == Row{5, 6, 7});
}

TEST_CASE("data whose masks leave no target are refused with the names of the masks") {
  const TemporaryFolder folder;
  const auto sources = counting_shards(folder, {9, 8, 2});
  const auto check = [&] { SequenceSet(sources, 3, 1000).check_any_target("train_data"); };
  CHECK(thrown(check).empty());
  // Only first tokens of sequences and a tail count: none of them is ever predicted.
  write_file(folder / "0.mask", std::string("\1\0\0\0\1\0\0\0\1", 9));
  CHECK(thrown(check).empty());
  write_file(folder / "1.mask", std::string(8, '\0'));
  check_error(ErrorKind::kConfig,
              {"train_data holds no valid target: every token that its 4 sequences predict is masked (0) in '",
               "/0.mask', '", "/1.mask': expected"},
              check);
  write_file(folder / "1.mask", std::string("\0\0\0\0\0\0\0\1", 8));
  CHECK(thrown(check).empty());
}

TEST_CASE("of many masks the first are named, and the rest counted") {
  const TemporaryFolder folder;
  const auto sources = counting_shards(folder, {4, 4, 4, 4, 4});
  for (const char* mask : {"0.mask", "1.mask", "2.mask", "3.mask", "4.mask"})
    write_file(folder / mask, std::string(4, '\0'));
  check_error(ErrorKind::kConfig, {"val_data holds", "/0.mask', '", "/2.mask' and 2 more: "},
              [&] { SequenceSet(sources, 3, 1000).check_any_target("val_data"); });
}

TEST_CASE("sequences beyond 2^31 tokens are read, over several shards") {
  const TemporaryFolder folder;
  std::vector<TokenSource> sources;
  for (const char* name : {"a", "b"}) {
    write_file(folder / name, "");
    std::filesystem::resize_file(folder / name, 3ULL << 30);  // sparse
    std::ofstream(folder / name, std::ios::binary | std::ios::app) << name << name << name << name;
    sources.push_back({folder / name, TokenFormat::kBytes});
  }
  const SequenceSet set(sources, 3, 256);
  CHECK(set.n_tokens() == 2 * ((3LL << 30) + 4));
  CHECK(read(set, set.n_sequences() - 1).targets == Row{'b', 'b', 'b'});
  CHECK(read(set, set.n_sequences() / 2 - 1).inputs == Row{'a', 'a', 'a'});
}

TEST_CASE("too few tokens for one sequence is an error that says how many it takes") {
  const TemporaryFolder folder;
  const auto sources = counting_shards(folder, {2, 3});
  check_error(ErrorKind::kIo, {"/0: too few tokens for one sequence: seq_len 3 takes 4, the longest file has 3"},
              [&] { SequenceSet(sources, 3, 1000); });
}

TEST_CASE("no files is an error") {
  check_error(ErrorKind::kIo, {"no token files given"}, [] { SequenceSet({}, 3, 1000); });
}

TEST_CASE("a sequence length or vocabulary that is no count is an error") {
  check_error(ErrorKind::kConfig, {"seq_len is 0"}, [] { SequenceSet({}, 0, 1000); });
  check_error(ErrorKind::kConfig, {"vocab_size is 0"}, [] { SequenceSet({}, 3, 0); });
}

TEST_CASE("a shard for a larger vocabulary than the model's is an error with both") {
  const TemporaryFolder folder;
  const auto sources = counting_shards(folder, {8});
  check_error(ErrorKind::kIo, {"/0 has a vocabulary of 1000, the model one of 999"},
              [&] { SequenceSet(sources, 3, 999); });
}

TEST_CASE("text is taken as bytes for another vocabulary only where that is said") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "some text");
  check_error(ErrorKind::kIo, {"a.txt would be read as bytes, of which there are 256", "vocabulary of 1000"},
              [&] { SequenceSet({{folder / "a.txt"}}, 3, 1000); });
  CHECK(SequenceSet({{folder / "a.txt", TokenFormat::kBytes}}, 3, 1000).n_tokens() == 9);
  CHECK(SequenceSet({{folder / "a.txt"}}, 3, 256).n_tokens() == 9);
}

TEST_CASE("a token outside of the vocabulary is an error with file and position") {
  const TemporaryFolder folder;
  write_file(folder / "ok", bytes_of(std::vector<std::uint32_t>{1, 2, 3, 4}));
  write_file(folder / "bad", bytes_of(std::vector<std::uint32_t>{1, 2, 3, 4, 5, 6, 7, 0x80000001}));
  const SequenceSet set({{folder / "ok", TokenFormat::kRawU32}, {folder / "bad", TokenFormat::kRawU32}}, 3, 10);
  CHECK(read(set, 1).inputs == Row{1, 2, 3});
  check_error(ErrorKind::kIo, {"/bad: token 2147483649 at position 7 is outside of the model's vocabulary of 10"},
              [&] { (void)read(set, 2); });
}

TEST_CASE("damage inside a valid shard is caught when read") {
  const TemporaryFolder folder;
  const auto sources = counting_shards(folder, {4});
  std::string content = read_file(folder / "0");
  content[content.size() - 1] = '\xff';
  write_file(folder / "0", content);
  const SequenceSet set(sources, 3, 1000);
  check_error(ErrorKind::kIo, {"at position 3"}, [&] { (void)read(set, 0); });
}

}  // namespace
}  // namespace ferry
