// SPDX-License-Identifier: Apache-2.0
// `ferry eval`: the loss of a saved model on files of tokens, or on texts that its own tokenizer encodes.
#include <fmt/core.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>

#include "backend/backend.h"
#include "cli/commands.h"
#include "cli/plan_report.h"
#include "cli/run_folder.h"
#include "cli/run_setup.h"
#include "cli/training_plan.h"
#include "core/error.h"
#include "core/human_units.h"
#include "core/log.h"
#include "data/byte_vocabulary.h"
#include "io/mapped_file.h"
#include "io/printable.h"
#include "train/evaluation.h"
#include "train/metrics.h"
#include "train/stored_weights.h"
#include "train/weights_io.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

/// A folder for the length of a call.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "ferry_eval_XXXXXX").string();
    FERRY_CHECK(mkdtemp(name.data()) != nullptr, kIo, "no folder can be made in '{}': set TMPDIR to one that has space",
                fs::temp_directory_path().string());
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// A token file with what the tokenizer makes of a text.
TokenSource encoded(const TokenSource& source, const TokenText* text, std::int64_t vocab_size, const fs::path& to) {
  const std::string shown = printable_name(source.path.string());
  FERRY_CHECK(text != nullptr, kConfig,
              "'{}' is text, and the model has no tokenizer.json and no byte vocabulary: give a token file", shown);
  FERRY_CHECK(text->why_not_encode().empty(), kConfig, "'{}' is text: {}", shown, text->why_not_encode());
  FERRY_CHECK(
      !TokenShard({source.path, TokenFormat::kBytes}).has_mask(), kConfig,
      "'{}' is text that the tokenizer encodes, and its mask '{}.mask' is one of bytes: remove the mask, or give "
      "a token file with a mask of its tokens",
      shown, shown);
  const MappedFile file(source.path);
  const auto bytes = file.bytes();
  const std::vector<std::int32_t> ids = text->encode({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  write_token_shard(to, TokenWidth::kU32, vocab_size, std::vector<std::uint32_t>(ids.begin(), ids.end()));
  return {to, TokenFormat::kShard};
}

/// What is given, cut as far as the model and the data ask for it unless it is on the line.
std::int64_t sequence_length(const CommandLine& line, const ModelConfig& model,
                             const std::vector<TokenSource>& sources) {
  if (line.seq_len_given) return line.config.seq_len;
  std::int64_t longest = 0;
  for (const TokenSource& source : sources) longest = std::max(longest, TokenShard(source).size() - 1);
  return std::max<std::int64_t>(1, std::min({line.config.seq_len, model.max_position_embeddings, longest}));
}

class EvalRun {
 public:
  explicit EvalRun(const CommandLine& line)
      : line_(line),
        config_(line.config),
        folder_(find_model_folder(config_.model)),
        model_(load_stored_config(folder_)),
        text_(find_token_text(folder_, model_.vocab_size)) {
    config_.accumulate = 1;
    config_.dtype = dtype_of(line, folder_);
  }

  int run() {
    EvaluationBatches batches(open_data(), config_.batch_size);
    const std::unique_ptr<Backend> backend = create_backend(config_.backend, backend_options(config_));
    const TrainingPlan plan = plan_here(config_, model_, *backend, Passes::kForward);
    Engine engine(*backend, model_, plan.step->options);
    load_weights(folder_, model_, engine);
    const Evaluation result = evaluate(engine, batches, config_.eval_tokens, text_ ? &*text_ : nullptr);
    if (config_.json) {
      fmt::print("{}", to_json_line(EvaluationLine{folder_.string(), config_.dtype, config_.seq_len, result}));
    } else {
      print(batches.sequences(), engine, *backend, result);
    }
    return 0;
  }

 private:
  /// Mapped files need no names: encoded texts are gone from the disk when this returns.
  SequenceSet open_data() {
    const ScratchFolder scratch;
    std::vector<TokenSource> sources = token_sources(line_, config_.val_data);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (format_of(sources[i]) != TokenFormat::kBytes || model_.vocab_size == kByteVocabularySize) continue;
      sources[i] =
          encoded(sources[i], text_ ? &*text_ : nullptr, model_.vocab_size, scratch.path() / fmt::format("{}.bin", i));
    }
    config_.seq_len = sequence_length(line_, model_, sources);
    SequenceSet data(sources, config_.seq_len, model_.vocab_size);
    data.check_any_target("val_data");
    return data;
  }

  void print(const SequenceSet& data, const Engine& engine, const Backend& backend, const Evaluation& result) const {
    TextReport text;
    text.add("model", printable_name(folder_.string()) + ": " +
                          describe_model(model_, engine.parameters().n_parameters(), config_.dtype));
    text.add("data", describe_data(config_.val_data, data));
    text.add("backend", backend.capabilities().name + ": " + backend.capabilities().description);
    text.add("memory", fmt::format("device {}, host {}", human_bytes(total_bytes(engine.device_memory())),
                                   human_bytes(total_bytes(engine.host_memory()))));
    std::string loss =
        fmt::format("{:.4f} nats per token, perplexity {:.4g}", result.loss(), perplexity(result.loss()));
    const std::optional<double> bits = result.bits_per_byte();
    loss += bits ? fmt::format(", {:.4f} bits per byte", *bits)
                 : "; bits per byte are not known without a tokenizer.json beside the model";
    text.add("loss", loss);
    text.add("tokens", fmt::format("{} in {:.2f} s: {} tokens/s", grouped(result.n_tokens), result.elapsed_s,
                                   human_count(result.tokens_per_s())));
    for (const std::string& each : std::move(text).lines()) fmt::print("{}\n", each);
  }

  const CommandLine& line_;
  RunConfig config_;
  fs::path folder_;
  ModelConfig model_;
  std::optional<TokenText> text_;
};

}  // namespace

int run_eval(const CommandLine& line) {
  log::set_level(log::Level::kWarn);
  FERRY_CHECK(!line.config.model.empty(), kConfig,
              "no model to evaluate: give a folder, as in `ferry eval FOLDER --val-data FILE`");
  return EvalRun(line).run();
}

}  // namespace ferry
