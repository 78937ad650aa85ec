// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_store.h"

#include <fstream>

#include "catch.h"
#include "temp_file.h"
#include "thrown.h"

using namespace ferry;

namespace fs = std::filesystem;

namespace {

void make_checkpoint(const fs::path& folder) {
  fs::create_directories(folder);
  for (const char* name : {kCheckpointStateFile, kCheckpointChecksums, "model.safetensors"}) {
    std::ofstream(folder / name) << "x";
  }
}

std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  for (const StoredCheckpoint& stored : list_checkpoints(folder)) steps.push_back(stored.step);
  return steps;
}

using Steps = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("checkpoints are listed by step, and nothing else is") {
  const TempFolder place;
  CHECK(list_checkpoints(place.path() / "absent").empty());
  for (const std::int64_t step : {100, 20, 1'000'000'000, 3}) make_checkpoint(place.path() / checkpoint_name(step));
  for (const char* other : {"step-7", "step-0000000100", "step-", "step--0000001", "step-0000001x", "stop-00000001",
                            ".step-00000001.tmp-1-0", "step-99999999999999999999"}) {
    make_checkpoint(place.path() / other);
  }
  place.write("step-00000005", "a file");
  fs::create_directory_symlink(place.path() / "step-00000020", place.path() / "step-00000006");
  CHECK(steps_in(place.path()) == Steps{3, 20, 100, 1'000'000'000});
  CHECK(checkpoint_name(100) == "step-00000100");
  CHECK(checkpoint_name(1'000'000'000) == "step-1000000000");
}

TEST_CASE("the newest checkpoints are kept, however few there are") {
  const TempFolder place;
  prune_checkpoints(place.path() / "absent", 1, 3);
  for (const std::int64_t step : {10, 20, 30, 40, 50}) {
    make_checkpoint(place.path() / checkpoint_name(step));
    prune_checkpoints(place.path(), step, 3);
  }
  CHECK(steps_in(place.path()) == Steps{30, 40, 50});
  prune_checkpoints(place.path(), 50, 3);
  CHECK(steps_in(place.path()) == Steps{30, 40, 50});
  prune_checkpoints(place.path(), 50, 1);
  CHECK(steps_in(place.path()) == Steps{50});
  prune_checkpoints(place.path(), 50, 1000);
  CHECK(steps_in(place.path()) == Steps{50});
}

TEST_CASE("checkpoints later than the one just saved stay") {
  const TempFolder place;
  for (const std::int64_t step : {10, 20, 30, 40}) make_checkpoint(place.path() / checkpoint_name(step));
  prune_checkpoints(place.path(), 20, 1);
  CHECK(steps_in(place.path()) == Steps{20, 30, 40});
}

TEST_CASE("what is not a checkpoint is never removed") {
  const TempFolder place;
  for (const std::int64_t step : {1, 2, 3, 4}) make_checkpoint(place.path() / checkpoint_name(step));
  fs::create_directory(place.path() / "step-00000001" / "notes");
  fs::remove(place.path() / "step-00000002" / kCheckpointStateFile);
  place.write("notes.txt", "mine");
  prune_checkpoints(place.path(), 4, 1);
  CHECK(steps_in(place.path()) == Steps{1, 2, 4});
  CHECK(fs::exists(place.path() / "notes.txt"));
}

TEST_CASE("leftovers of processes that died are tidied up, other hidden names stay") {
  const TempFolder place;
  make_checkpoint(place.path() / "step-00000010");
  make_checkpoint(place.path() / ".step-00000020.tmp-1-0");
  make_checkpoint(place.path() / ".step-00000030.old");  // a swap that ended half-way
  make_checkpoint(place.path() / ".other.tmp-1-0");
  tidy_checkpoints(place.path());
  CHECK(steps_in(place.path()) == Steps{10, 30});
  CHECK_FALSE(fs::exists(place.path() / ".step-00000020.tmp-1-0"));
  CHECK(fs::exists(place.path() / ".other.tmp-1-0"));
  tidy_checkpoints(place.path() / "absent");
}

TEST_CASE("a model that does not fit on the disk is refused") {
  const TempFolder place;
  CHECK(thrown([&] { check_model_space(place.path() / "new", 1000); }).empty());
  CHECK(thrown([&] {
          check_model_space(place.path() / "new", std::size_t{1} << 60);
        }).starts_with("io: the final model takes 1.0 EiB in "));
}

TEST_CASE("checkpoints that do not fit on the disk are refused with what to change") {
  const TempFolder place;
  const fs::path output = place.path() / "not" / "yet";
  CHECK(thrown([&] { check_checkpoint_space(output, 2, 1000, 1000); }).empty());
  const std::string message = thrown([&] { check_checkpoint_space(output, 2, std::size_t{1} << 60, 0); });
  CHECK(message.starts_with("io: 3 checkpoints of 1.0 EiB (keep_last = 2, and one while it is written)"));
  CHECK(message.ends_with("free space, lower keep_last, give an output on another disk, or set save_every = 0"));
}
