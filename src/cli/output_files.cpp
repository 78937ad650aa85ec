// SPDX-License-Identifier: Apache-2.0
// Lists of what is read and of what is written, and all pairs of them.
#include "cli/output_files.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/run_folder.h"
#include "config/presets.h"
#include "core/error.h"
#include "io/file_identity.h"
#include "io/printable.h"
#include "train/checkpoint_store.h"
#include "train/companion_files.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

struct NamedPath {
  std::string name;  // of its option
  fs::path path;     // a file, or a folder whose files are meant
};
using Paths = std::vector<NamedPath>;

std::string shown(const fs::path& path) { return fmt::format("'{}'", printable_name(path.string())); }

std::string shown(const NamedPath& named) { return fmt::format("{} {}", named.name, shown(named.path)); }

/// "is" or "lies in"
std::string relation(const fs::path& path, const fs::path& other) { return same_file(path, other) ? "is" : "lies in"; }

/// Of a model or a checkpoint; a folder of models may hold other files, an older trace say.
bool is_model_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "config.json" || name == kCheckpointStateFile || name == kCheckpointChecksums ||
         name.find(".safetensors") != std::string::npos || is_companion_file(name);
}

void add_model(const char* option, const std::string& model, Paths& inputs) {
  std::error_code failure;
  if (model.empty()) return;
  if (!fs::is_directory(model, failure)) return inputs.push_back({option, model});
  for (fs::directory_iterator it(model, failure), end; !failure && it != end; it.increment(failure)) {
    if (is_model_file(it->path())) inputs.push_back({option, it->path()});
  }
}

void add_data(const char* option, const std::vector<std::string>& files, Paths& inputs) {
  for (const std::string& file : files) {
    inputs.push_back({option, file});
    inputs.push_back({fmt::format("the mask of {}", option), file + ".mask"});
  }
}

/// The checkpoints of a run's folder, or one alone.
fs::path resumed_folder(const std::string& resume) {
  std::error_code failure;
  const fs::path checkpoints = fs::path(resume) / "checkpoints";
  return fs::is_directory(checkpoints, failure) ? checkpoints : fs::path(resume);
}

Paths inputs_of(const CommandLine& line) {
  const RunConfig& config = line.config;
  Paths inputs;
  if (!line.runs_built_in() && !line.config_source.empty()) inputs.push_back({"config", line.config_source});
  const auto presets = preset_names();
  if (std::ranges::count(presets, config.model) == 0) add_model("model", config.model, inputs);
  add_model("init_from", config.init_from, inputs);
  add_data("train_data", config.train_data, inputs);
  add_data("val_data", config.val_data, inputs);
  const bool writes_rates = line.bench_target == "machine";
  if (!config.rates.empty() && !writes_rates) inputs.push_back({"rates", config.rates});
  if (config.resume != "none" && config.resume != "auto") inputs.push_back({"resume", resumed_folder(config.resume)});
  return inputs;
}

/// Those that an option names.
Paths outputs_of(const CommandLine& line) {
  const RunConfig& config = line.config;
  const bool trains = line.command == Command::kTrain;
  Paths outputs;
  const auto add = [&outputs](bool written, const char* option, const std::string& file) {
    if (written && !file.empty()) outputs.push_back({option, file});
  };
  add(trains, "log_file", config.log_file);
  add(trains || line.bench_target == "step", "trace", config.trace);
  add(line.bench_target == "machine", "rates", config.rates);
  return outputs;
}

void check_apart(const NamedPath& a, const NamedPath& b) {
  FERRY_CHECK(!lies_in(a.path, b.path) && !lies_in(b.path, a.path), kConfig,
              "{} and {} are one file, or one lies in the other: give each a file of its own", shown(a), shown(b));
}

/// A run goes on, or starts anew, by the config.toml and the checkpoints that it has saved itself.
bool reads_own(const NamedPath& input, std::string_view own) {
  return (input.name == "config" && own == "config.toml") || (input.name == "resume" && own == "checkpoints");
}

void check_run_folder(const fs::path& output, const Paths& outputs, const Paths& inputs) {
  for (const NamedPath& file : outputs) {
    FERRY_CHECK(!lies_in(output, file.path), kConfig,
                "output {} {} {}: give the folder and the file names of their own", shown(output),
                relation(output, file.path), shown(file));
  }
  for (const std::string_view name : kRunFolderNames) {
    const fs::path own = output / name;
    for (const NamedPath& file : outputs) {
      FERRY_CHECK(!lies_in(file.path, own), kConfig,
                  "{} {} {}, which the run writes itself: give the name of another file", shown(file),
                  relation(file.path, own), shown(own));
    }
    std::error_code failure;
    if (!fs::exists(own, failure)) continue;
    for (const NamedPath& input : inputs) {
      FERRY_CHECK(reads_own(input, name) || !lies_in(input.path, own), kConfig,
                  "{} {} {}, which the run writes: it would be lost, give another folder with --output", shown(input),
                  relation(input.path, own), shown(own));
    }
  }
}

}  // namespace

void check_output_files(const CommandLine& line) {
  const Paths outputs = outputs_of(line);
  const Paths inputs = inputs_of(line);
  for (const NamedPath& file : outputs) {
    for (const NamedPath& input : inputs) {
      FERRY_CHECK(!lies_in(file.path, input.path), kConfig,
                  "{} {} {}, which is read: it would be overwritten, give the name of another file", shown(file),
                  relation(file.path, input.path), shown(input));
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) check_apart(outputs[j], outputs[i]);
  }
  const bool has_folder = line.command == Command::kTrain && !line.config.output.empty();
  if (has_folder) check_run_folder(line.config.output, outputs, inputs);
}

}  // namespace ferry
