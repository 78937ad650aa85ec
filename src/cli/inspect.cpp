// SPDX-License-Identifier: Apache-2.0
// `ferry inspect`: what a file or folder holds. Nothing of it is believed; a damaged one ends in a message.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/run_folder.h"
#include "cli/tensor_table.h"
#include "cli/text_report.h"
#include "config/config_file.h"
#include "config/model_config.h"
#include "config/option_value.h"
#include "core/error.h"
#include "core/human_units.h"
#include "data/token_shard.h"
#include "data/token_text.h"
#include "io/checksum.h"
#include "io/mapped_file.h"
#include "io/model_folder.h"
#include "io/printable.h"
#include "model/parameter_table.h"
#include "train/checkpoint.h"
#include "train/checkpoint_checksums.h"
#include "train/checkpoint_store.h"
#include "train/stored_weights.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

std::string size_on_disk(const fs::path& path) {
  std::error_code failure;
  const auto bytes = fs::file_size(path, failure);
  return failure ? "unknown size" : human_bytes(bytes);
}

std::string describe_rope(const RopeScaling& scaling) {
  switch (scaling.type) {
    case RopeScaling::Type::kDefault: return "";
    case RopeScaling::Type::kLinear: return fmt::format(", scaled linearly by {:g}", scaling.factor);
    case RopeScaling::Type::kLlama3: break;
  }
  return fmt::format(", llama3 scaling by {:g} beyond {} positions (frequency factors {:g} and {:g})", scaling.factor,
                     scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor);
}

void add_model(TextReport& text, const ModelConfig& model) {
  const ParameterTable table(model, model.vocab_size);
  text.add("model", fmt::format("Llama of {} parameters: {} layers of width {}, MLP width {}, {} heads of width {} ({} "
                                "key/value), vocabulary {}, {} embeddings",
                                grouped(table.n_parameters()), model.n_layers, model.hidden_size,
                                model.intermediate_size, model.n_heads, model.head_dim, model.n_kv_heads,
                                grouped(model.vocab_size), model.tie_word_embeddings ? "tied" : "untied"));
  text.add("positions", fmt::format("{}, rope theta {:g}{}", grouped(model.max_position_embeddings), model.rope_theta,
                                    describe_rope(model.rope_scaling)));
}

void add_tokenizer(TextReport& text, const fs::path& folder) {
  std::error_code failure;
  if (!fs::exists(folder / "tokenizer.json", failure)) return;
  const TokenText tokens = TokenText::load(folder);
  std::string ends = tokens.bos() ? fmt::format(", BOS {}", *tokens.bos()) : "";
  for (std::size_t i = 0; i < tokens.eos().size(); ++i) {
    ends += fmt::format("{} {}", i == 0 ? ", EOS" : " or", tokens.eos()[i]);
  }
  text.add("tokenizer", fmt::format("tokenizer.json: ids below {}{}", grouped(tokens.size()), ends));
}

void add_file(TextReport& text, const SafetensorsFile& file, bool all) {
  text.add("file", fmt::format("{}: {}, {}", printable_name(file.path().filename().string()), size_on_disk(file.path()),
                               tensor_summary(file.entries())));
  for (const auto& [key, value] : file.metadata()) {
    text.add_line("", printable_name(fmt::format("{} = {}", key, value)));
  }
  for (const std::string& line : tensor_table(file.entries(), all)) text.add_line(line, "");  // it needs all columns
}

void add_token_file(TextReport& text, const fs::path& path) {
  constexpr std::int64_t kShown = 12;
  const TokenShard shard({path, TokenFormat::kAuto});
  text.add("file", fmt::format("{}: {}, {}", printable_name(path.filename().string()), size_on_disk(path),
                               path.extension() == ".txt" ? "text" : "token shard, version 1"));
  text.add("tokens", fmt::format("{}, vocabulary {}{}", grouped(shard.size()), grouped(shard.vocab_size()),
                                 shard.has_mask() ? ", with a mask beside it" : ""));
  std::vector<std::uint32_t> ids(static_cast<std::size_t>(std::min(kShown, shard.size())));
  shard.read(0, ids);
  std::string first;
  for (const std::uint32_t id : ids) first += fmt::format("{}{}", first.empty() ? "" : " ", id);
  text.add("first", first + (shard.size() > kShown ? " ..." : ""));
}

void add_run_config(TextReport& text, const fs::path& path) {
  RunConfig config;
  read_config_file(path, config);
  text.add("config", printable_name(path.filename().string()) + ": these keys differ from their defaults");
  std::string_view section;
  for (const Option& option : option_table()) {
    const OptionValue value = get_option(config, option);
    if (value == get_option(RunConfig{}, option)) continue;
    const std::string label = section == option.section ? "" : option.section;
    section = option.section;
    text.add(label, printable_name(fmt::format("{} = {}", option.key, to_toml(value))));
  }
}

void add_state(TextReport& text, const CheckpointState& state) {
  const TrainerState& trainer = state.trainer;
  text.add("state",
           fmt::format("step {}, {} of them skipped; {} tokens trained in {}", grouped(trainer.step),
                       grouped(trainer.skipped_steps), grouped(trainer.tokens), human_duration(trainer.elapsed_s)));
  text.add("next", fmt::format("sequence {} of {} in epoch {}, both from 0", grouped(trainer.cursor.position),
                               grouped(state.run.n_sequences), trainer.cursor.epoch));
  if (trainer.last_eval) {
    text.add("loss", fmt::format("validation {:.4f} at step {}", trainer.last_eval->val_loss,
                                 grouped(trainer.last_eval->step)));
  }
  text.add("written", printable_name(fmt::format("by ferry {} on {}", state.run.ferry_version, state.run.backend)));
}

/// The others of a run, which inspect takes one at a time.
void add_checkpoints(TextReport& text, const fs::path& run) {
  std::vector<std::string> names;
  for (const StoredCheckpoint& stored : list_checkpoints(run / "checkpoints")) {
    names.push_back(stored.folder.filename().string());
  }
  if (!names.empty()) text.add("run", fmt::format("checkpoints {}", fmt::join(names, ", ")));
}

/// By name, of a file or of the files in a folder.
void add_checksums(TextReport& text, const fs::path& path) {
  std::vector<fs::path> files;
  std::error_code failure;
  if (fs::is_directory(path, failure)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  } else {
    files.push_back(path);
  }
  std::ranges::sort(files);
  const char* label = "xxh128";
  for (const fs::path& file : files) {
    text.add_line(std::exchange(label, ""),
                  fmt::format("{}  {}", digest_of(file).checksum, printable_name(file.filename().string())));
  }
}

void add_model_folder(TextReport& text, const fs::path& folder, bool all) {
  text.add("folder", printable_name(folder.string()));
  std::error_code failure;
  if (fs::exists(folder / kCheckpointStateFile, failure)) add_state(text, read_checkpoint_state(folder));
  add_model(text, load_stored_config(folder));
  add_tokenizer(text, folder);
  const ModelFolder weights(folder);
  for (const SafetensorsFile& file : weights.files()) add_file(text, file, all);
  const fs::path optimizer = folder / kCheckpointOptimizer;
  if (fs::exists(optimizer, failure)) add_file(text, SafetensorsFile(optimizer), all);
}

bool is_token_shard(const fs::path& path) {
  constexpr std::string_view kMagic = "FERRYTOK";
  const MappedFile file(path);
  return file.bytes().size() >= kMagic.size() && std::memcmp(file.bytes().data(), kMagic.data(), kMagic.size()) == 0;
}

void add_any_file(TextReport& text, const fs::path& path, bool all) {
  const std::string extension = path.extension().string();
  if (extension == ".safetensors") return add_file(text, SafetensorsFile(path), all);
  if (extension == ".toml") return add_run_config(text, path);
  if (extension == ".json") return add_model(text, load_model_config(path));
  FERRY_CHECK(extension == ".txt" || is_token_shard(path), kIo,
              "'{}' is no .safetensors, .toml, config.json, .txt or token shard (it does not begin with FERRYTOK)",
              printable_name(path.string()));
  add_token_file(text, path);
}

/// After all has been shown: tensors that do not fit config.json, or bytes that are not those of the save, end it. Only
/// `all_bytes` looks at those of tensors: nothing of them is shown.
void check_folder(const fs::path& folder, bool all_bytes) {
  const StoredWeights weights(folder);
  const std::optional<CheckpointChecksums> checksums = CheckpointChecksums::find(folder);
  if (!checksums) return;
  if (!all_bytes) return checksums->check_file(kCheckpointStateFile);
  const Checkpoint whole(folder);
  fmt::print("{:<10}every byte of the checkpoint is as it was saved\n", "checked");
}

}  // namespace

int run_inspect(const CommandLine& line) {
  const fs::path path = line.paths.at(0);
  std::error_code failure;
  FERRY_CHECK(fs::exists(path, failure), kIo, "'{}' does not exist", printable_name(path.string()));
  TextReport text;
  const bool is_folder = fs::is_directory(path, failure);
  const fs::path shown = is_folder ? find_model_folder(path) : path;
  if (is_folder) {
    add_checkpoints(text, path);
    add_model_folder(text, shown, line.config.all);
  } else {
    add_any_file(text, shown, line.config.all);
  }
  if (line.config.checksums) add_checksums(text, shown);
  for (const std::string& each : std::move(text).lines()) fmt::print("{}\n", each);
  if (is_folder) check_folder(shown, line.config.checksums);
  return 0;
}

}  // namespace ferry
