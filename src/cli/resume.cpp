// SPDX-License-Identifier: Apache-2.0
// Keys are compared by default: only those that change no bit are listed as free.
#include "cli/resume.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <vector>

#include "config/config_file.h"
#include "config/option_table.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/log.h"
#include "core/simd.h"
#include "io/printable.h"
#include "optim/schedule.h"
#include "train/checkpoint_store.h"
#include "train/weights_io.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

// May differ: reports, lengths, evaluation, what computes, and where things live. model, init_from, train_data, steps
// and epochs are compared by what they mean.
constexpr std::string_view kFree =
    " model init_from train_data val_data steps epochs output resume save_every keep_last log_every eval_every "
    "eval_tokens backend device threads check_finite quiet log_file trace sample_tokens sample_prompt temperature "
    "top_k top_p offload gpu_memory host_memory weight_slots grad_slots resident_state_layers resident_layers "
    "residuals recompute rates ";

bool is_free(const Option& option) {
  const bool listed = kFree.find(fmt::format(" {} ", option.key)) != std::string_view::npos;
  return listed || !takes(Command::kTrain, option);
}

std::string value_text(const RunConfig& config, const Option& option) {
  const OptionValue value = get_option(config, option);
  return is_allowed(option, value) ? to_toml(value) : "not given";
}

[[noreturn]] void refuse(const Checkpoint& checkpoint, const std::string& difference) {
  const std::string folder = printable_name(checkpoint.folder().string());
  detail::throw_error(
      ErrorKind::kConfig,
      fmt::format("cannot resume from '{}': {}; a resumed run goes on to the bit: set it back, or start "
                  "another run from these weights with --init-from '{}'",
                  folder, difference, folder));
}

std::vector<std::string> file_names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) names.push_back(fs::path(path).filename().string());
  return names;
}

void compare_keys(const Checkpoint& checkpoint, const RunConfig& then, const RunConfig& now) {
  for (const Option& option : option_table()) {
    if (is_free(option) || get_option(then, option) == get_option(now, option)) continue;
    refuse(checkpoint, fmt::format("it was trained with {} = {}, this run has {}", option.key, value_text(then, option),
                                   value_text(now, option)));
  }
}

std::string mask_text(const std::string& checksum) {
  return checksum.empty() ? "no mask" : fmt::format("a mask with checksum {}", printable_name(checksum));
}

/// Of files whose names and tokens are as many as then.
void compare_contents(const Checkpoint& checkpoint, const std::vector<std::string>& paths,
                      const std::vector<DataFingerprint>& now) {
  const std::vector<DataFingerprint>& then = checkpoint.state().run.data_files;
  if (then.empty()) return;  // of a ferry that kept none
  if (then.size() != now.size()) {
    refuse(checkpoint, fmt::format("it was trained with {} data files, this run has {}", then.size(), now.size()));
  }
  for (std::size_t i = 0; i < now.size(); ++i) {
    const std::string path = printable_name(paths[i]);
    if (then[i].tokens != now[i].tokens) {
      refuse(checkpoint,
             fmt::format("'{}' holds other data than then: it had {} bytes with checksum {} of its samples, "
                         "it has {} with {}",
                         path, then[i].tokens.size_bytes, printable_name(then[i].tokens.checksum),
                         now[i].tokens.size_bytes, now[i].tokens.checksum));
    }
    if (then[i].mask != now[i].mask) {
      refuse(checkpoint, fmt::format("'{}' had {}, it has {}", path, mask_text(then[i].mask), mask_text(now[i].mask)));
    }
  }
}

void compare_data(const Checkpoint& checkpoint, const RunConfig& then, const RunConfig& now, const SequenceSet& data) {
  const OptionValue names_then = file_names(then.train_data);
  const OptionValue names_now = file_names(now.train_data);
  if (names_then != names_now) {
    refuse(checkpoint, fmt::format("it was trained with train_data = {}, this run has {}", to_toml(names_then),
                                   to_toml(names_now)));
  }
  const RunIdentity& run = checkpoint.state().run;
  if (run.n_data_tokens != data.n_tokens() || run.n_sequences != data.n_sequences()) {
    refuse(checkpoint, fmt::format("its train_data had {} tokens in {} sequences, they have {} in {}",
                                   run.n_data_tokens, run.n_sequences, data.n_tokens(), data.n_sequences()));
  }
  compare_contents(checkpoint, now.train_data, data.fingerprints());
}

/// Another length is fine where the steps behind would have had the same learning rates.
void compare_schedule(const Checkpoint& checkpoint, std::int64_t steps_then, const ScheduleOptions& now) {
  constexpr std::int64_t kSamples = 1000;
  const std::int64_t done = checkpoint.state().trainer.step;
  if (done > now.steps) refuse(checkpoint, fmt::format("it has {} steps, this run ends after {}", done, now.steps));
  ScheduleOptions then = now;
  then.steps = steps_then;
  for (std::int64_t step = done - 1; step >= 0; step -= std::max<std::int64_t>(1, done / kSamples)) {
    if (learning_rate(then, step) == learning_rate(now, step)) continue;
    refuse(checkpoint, fmt::format("it was trained for steps = {}, this run has {}, and schedule = \"{}\" falls over "
                                   "all steps: step {} would have had another learning rate",
                                   steps_then, now.steps, to_string(now.schedule), step + 1));
  }
}

std::string mlp_chunk_text(const MlpCut& cut) {
  switch (cut.by) {
    case MlpCut::By::kTokens: return fmt::format("tokens:{}", cut.size);
    case MlpCut::By::kFeatures: return fmt::format("features:{}", cut.size);
    default: return "none";
  }
}

/// Whether the head sums in the order of `head = auto`.
bool sums_as_auto(const RunConfig& config) { return !config.head.starts_with("tokens"); }

/// `path` itself, or the newest of the run folder `path`.
fs::path checkpoint_at(const fs::path& path) {
  std::error_code failure;
  const std::vector<StoredCheckpoint> stored = list_checkpoints(path / "checkpoints");
  if (!stored.empty()) return stored.back().folder;
  for (const char* file : {kCheckpointStateFile, kCheckpointChecksums}) {
    if (fs::exists(path / file, failure)) return path;
  }
  detail::throw_error(ErrorKind::kIo,
                      fmt::format("resume: '{}' holds no checkpoint: expected a folder such as "
                                  "checkpoints/step-00000100, or the output of a run that has saved one",
                                  printable_name(path.string())));
}

/// The config.toml of a run whose folder was moved still names the old one.
void check_not_moved(const RunConfig& config, const fs::path& config_file) {
  if (config_file.filename() != "config.toml") return;
  const fs::path folder = config_file.has_parent_path() ? config_file.parent_path() : ".";
  FERRY_CHECK(list_checkpoints(folder / "checkpoints").empty(), kIo,
              "resume = auto: output '{}' holds no checkpoint, but the folder of '{}' does: to go on with those, give "
              "--output '{}'",
              printable_name(config.output), printable_name(config_file.string()), printable_name(folder.string()));
}

std::string backend_name(const Backend& backend) {
  const Capabilities& capabilities = backend.capabilities();
  return fmt::format("{}: {}", capabilities.name,
                     capabilities.is_device ? capabilities.description : to_string(simd_level()));
}

}  // namespace

std::optional<Checkpoint> find_checkpoint(const RunConfig& config, const fs::path& config_file,
                                          const std::function<void(const std::string&)>& say) {
  if (config.resume == "none") return std::nullopt;
  if (config.resume == "auto") {
    std::optional<Checkpoint> found = newest_whole_checkpoint(fs::path(config.output) / "checkpoints");
    if (found) return found;
    check_not_moved(config, config_file);
    say(fmt::format("resume    no checkpoint in {}: the run starts anew", config.output));
    return std::nullopt;
  }
  return Checkpoint(checkpoint_at(config.resume));
}

bool is_of_run(const Checkpoint& checkpoint, const fs::path& output) {
  std::error_code failure;
  const fs::path here = fs::weakly_canonical(output / "checkpoints", failure);
  const fs::path there = fs::weakly_canonical(fs::absolute(checkpoint.folder()) / "..", failure);
  return !failure && here == there;
}

void adopt_checkpoint(const Checkpoint& checkpoint, const ResumedRun& run, RunConfig& config) {
  const CheckpointState& state = checkpoint.state();
  const std::string origin = (checkpoint.folder() / kCheckpointStateFile).string() + ": config";
  RunConfig then;
  read_config_text(state.run.config_toml, origin, then);
  check_same_model(checkpoint.folder().string(), run.model, load_model_config(checkpoint.folder()));
  if (config.mlp_chunk == "auto") config.mlp_chunk = then.mlp_chunk;
  if (config.vocab_chunk == 0) config.vocab_chunk = then.vocab_chunk;
  if (sums_as_auto(then) && sums_as_auto(config)) then.head = config.head;
  if (config.head == "auto") config.head = then.head;
  compare_keys(checkpoint, then, config);
  compare_data(checkpoint, then, config, run.train_data);
  compare_schedule(checkpoint, then.steps, run.schedule);
}

void warn_of_other_backend(const Checkpoint& checkpoint, const Backend& backend) {
  const std::string& then = checkpoint.state().run.backend;
  if (then == backend_name(backend)) return;
  log::warn(
      "the checkpoint was made with '{}', this run uses '{}': it goes on, but its last bits may differ from those "
      "of a run that was never stopped",
      printable_name(then), backend_name(backend));
}

RunIdentity run_identity(const RunConfig& config, const StepPlan& plan, const ResumedRun& run, const Backend& backend,
                         const std::string& ferry_version) {
  RunConfig chosen = config;
  chosen.resume = "none";
  chosen.steps = run.schedule.steps;
  chosen.epochs = 0;
  chosen.mlp_chunk = mlp_chunk_text(plan.options.mlp_cut);
  chosen.vocab_chunk = plan.parameters.segment(plan.parameters.head_segment(0)).n_rows;
  return {.config_toml = to_toml(chosen),
          .ferry_version = ferry_version,
          .backend = backend_name(backend),
          .n_sequences = run.train_data.n_sequences(),
          .n_data_tokens = run.train_data.n_tokens(),
          .data_files = run.train_data.fingerprints()};
}

std::size_t checkpoint_bytes(const ParameterArrays& arrays) {
  std::size_t bytes = 0;
  for (const ParameterArray array : {ParameterArray::kWeight, ParameterArray::kWeightLow, ParameterArray::kFirstMoment,
                                     ParameterArray::kSecondMoment}) {
    for (const Home home : {Home::kHost, Home::kDevice}) bytes += arrays.size_bytes(array, home);
  }
  return bytes;
}

std::string resume_command(const RunFolder& folder) {
  const std::string path = folder.config().string();
  const bool plain = std::ranges::all_of(path, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("_-./").find(c) != std::string_view::npos;
  });
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return fmt::format("ferry train {} --resume auto", plain ? path : quoted + "'");
}

}  // namespace ferry
