// SPDX-License-Identifier: Apache-2.0
// `ferry generate`: continues a text, or token ids, with a saved model; to stdout, as tokens come.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "cli/commands.h"
#include "cli/run_folder.h"
#include "cli/run_setup.h"
#include "cli/training_plan.h"
#include "core/error.h"
#include "core/log.h"
#include "data/token_text.h"
#include "io/printable.h"
#include "offload/engine.h"
#include "train/generation.h"
#include "train/stopwatch.h"
#include "train/stored_weights.h"
#include "train/weights_io.h"

namespace ferry {
namespace {

/// Rows of a prompt that go through the model together. More make no product faster; fewer mean more trips of the
/// weights to the device.
constexpr std::int64_t kMostRows = 1024;

/// Writes bytes to stdout as soon as they form characters. A terminal gets no control characters from the model.
class TextStream {
 public:
  explicit TextStream(bool is_terminal) : is_terminal_(is_terminal) {}

  void write(std::string_view bytes) {
    for (const char byte : bytes) {
      pending_.push_back(byte);
      if (pending_.size() >= character_bytes(pending_.front())) move_on();
    }
    show();
  }

  void end() {
    move_on();
    ready_.push_back('\n');
    show();
  }

 private:
  /// Length of the UTF-8 sequence that `first` begins; 1 for a stray byte.
  static std::size_t character_bytes(char first) {
    const auto bits = static_cast<unsigned char>(first);
    if (bits >= 0xf0) return 4;
    if (bits >= 0xe0) return 3;
    return bits >= 0xc0 ? 2 : 1;
  }

  void move_on() {
    ready_ += is_terminal_ ? printable_text(pending_) : pending_;
    pending_.clear();
  }

  void show() {
    std::fwrite(ready_.data(), 1, ready_.size(), stdout);
    std::fflush(stdout);
    ready_.clear();
  }

  bool is_terminal_;
  std::string pending_;  // a character that is not complete
  std::string ready_;
};

/// What is seen of a sequence: its text, or its ids where nobody can spell them.
class Output {
 public:
  explicit Output(const TokenText* text) : is_terminal_(isatty(STDOUT_FILENO) != 0), stream_(is_terminal_) {
    if (text != nullptr) decoder_.emplace(*text);
  }

  /// False when it cannot be written.
  bool add(std::int32_t id) {
    if (decoder_) {
      stream_.write(decoder_->next(id));
    } else {
      stream_.write(fmt::format("{}{}", any_ ? "," : "", id));
    }
    any_ = true;
    return std::ferror(stdout) == 0;
  }

  /// Throws Error{kIo} when not all has been written.
  void end() {
    stream_.end();
    FERRY_CHECK(std::ferror(stdout) == 0, kIo, "writing the text to stdout failed: is the disk full?");
  }

  bool is_terminal() const { return is_terminal_; }

 private:
  bool is_terminal_;
  TextStream stream_;
  std::optional<TextDecoder> decoder_;
  bool any_ = false;
};

/// "1,403,407". Throws Error{kConfig}.
std::vector<std::int32_t> parse_ids(std::string_view text, std::int64_t vocab_size) {
  std::vector<std::int32_t> ids;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, comma - begin);
    std::int32_t id = -1;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    FERRY_CHECK(error == std::errc() && rest == part.data() + part.size() && id >= 0 && id < vocab_size, kConfig,
                "prompt_ids: '{}' is no token: expected numbers from 0 to {}, as in 1,403,407", printable_name(part),
                vocab_size - 1);
    ids.push_back(id);
    begin = comma + 1;
  }
  return ids;
}

class GenerateRun {
 public:
  explicit GenerateRun(const CommandLine& line)
      : config_(line.config),
        folder_(find_model_folder(config_.model)),
        model_(load_stored_config(folder_)),
        text_(find_token_text(folder_, model_.vocab_size)),
        prompt_(read_prompt()),
        backend_(create_backend(config_.backend, backend_options(config_))),
        dtype_(dtype_of(line, folder_)) {
    const TrainingPlan plan = plan_generation(config_, model_, options(), *backend_);
    context_ = plan.step->options.cache_tokens;
    engine_ = std::make_unique<Engine>(*backend_, model_, plan.step->options);
    load_weights(folder_, model_, *engine_);
  }

  void run() {
    if (std::ssize(prompt_) > context_) {
      log::warn("the prompt has {} tokens, the model's context {}: it sees the last {} of them", prompt_.size(),
                context_, context_ / 2);
    }
    Output out(text_ ? &*text_ : nullptr);
    for (const std::int32_t id : prompt_) out.add(id);
    CachedSequence sequence(*engine_, context_);
    const Stopwatch watch;
    double prompt_s = 0;
    std::int64_t n_tokens = 0;
    generate([&](std::span<const std::int32_t> ids) { return sequence.extend(ids); }, prompt_,
             {.n_tokens = config_.max_tokens, .end_ids = end_ids(), .sampler = sampler_options(config_)},
             [&](std::int32_t id) {
               if (++n_tokens == 1) prompt_s = watch.seconds();
               return out.add(id);
             });
    const double tokens_s = watch.seconds() - prompt_s;
    out.end();
    if (out.is_terminal() && n_tokens > 1) report({prompt_s, tokens_s, n_tokens, sequence.n_restarts() > 0});
  }

 private:
  std::vector<std::int32_t> read_prompt() const {
    if (!config_.prompt_ids.empty()) {
      FERRY_CHECK(config_.prompt.empty(), kConfig, "prompt and prompt_ids are given: expected one of them");
      return parse_ids(config_.prompt_ids, model_.vocab_size);
    }
    FERRY_CHECK(text_.has_value(), kConfig,
                "'{}' has no tokenizer.json for its vocabulary of {} (ferry itself spells bytes, vocab_size {}): add "
                "one, or give --prompt-ids",
                printable_name(folder_.string()), model_.vocab_size, kByteVocabularySize);
    if (config_.prompt.empty() && text_->bos()) return {*text_->bos()};
    FERRY_CHECK(text_->why_not_encode().empty(), kConfig, "{} (as --prompt-ids 1,2,3)", text_->why_not_encode());
    return text_->encode(config_.prompt.empty() ? "\n" : config_.prompt);
  }

  EngineOptions options() const {
    EngineOptions options;
    options.dtype = dtype_;
    options.training = false;
    options.threads = static_cast<int>(config_.threads);
    const std::int64_t total = std::ssize(prompt_) + config_.max_tokens;
    options.cache_tokens = std::min(model_.max_position_embeddings, total);
    // A sequence that outgrows the cache begins anew with half of it.
    const std::int64_t longest = total > options.cache_tokens ? options.cache_tokens : std::ssize(prompt_);
    options.seq_len = std::min(longest, kMostRows);
    return options;
  }

  /// A byte never ends a text.
  std::vector<std::int32_t> end_ids() const { return text_ ? text_->eos() : read_text_ends(folder_).eos; }

  struct Speed {
    double prompt_s = 0;
    double tokens_s = 0;  // of all tokens but the first, which the prompt's pass gives
    std::int64_t n_tokens = 0;
    bool outgrown = false;
  };

  void report(const Speed& speed) const {
    fmt::print(stderr, "\nprompt: {} tokens in {:.3f} s; generated: {} tokens, {:.1f} a second\n", prompt_.size(),
               speed.prompt_s, speed.n_tokens, static_cast<double>(speed.n_tokens - 1) / speed.tokens_s);
    if (!speed.outgrown) return;
    fmt::print(stderr, "context: full at {} tokens, each time the model went on with the last {}\n", context_,
               context_ / 2);
  }

  const RunConfig& config_;
  const std::filesystem::path folder_;
  const ModelConfig model_;
  const std::optional<TokenText> text_;
  const std::vector<std::int32_t> prompt_;
  std::unique_ptr<Backend> backend_;
  const DType dtype_;
  std::int64_t context_ = 0;
  std::unique_ptr<Engine> engine_;  // after the backend, so that it goes first
};

}  // namespace

int run_generate(const CommandLine& line) {
  log::set_level(log::Level::kWarn);  // the text alone
  FERRY_CHECK(!line.config.model.empty(), kConfig,
              "no model to generate from: give a folder, as in `ferry generate FOLDER --prompt \"Once upon\"`");
  GenerateRun(line).run();
  return 0;
}

}  // namespace ferry
